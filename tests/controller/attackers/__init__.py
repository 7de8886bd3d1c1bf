"""Members and strangers that do a controller all the harm that they can."""
