"""Times, as the event log shows them."""

from django import template

register = template.Library()


@register.filter
def ms_since(at: float, began: float) -> int:
    """Return how many milliseconds lie between two times in seconds."""
    return round((at - began) * 1000)
