"""How fast an implementation is against the machine's memory bandwidth."""
