"""The lab: what coordinators do, played for real on the server and shown in the browser."""
