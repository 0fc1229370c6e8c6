"""The words of the commands and the meaning of their replies."""
