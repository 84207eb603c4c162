"""Hold ranks back while processes of an earlier attempt still hold memory of devices."""
