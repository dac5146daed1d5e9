"""The pure part: values and rules that know no lock, loop, socket or framework."""
