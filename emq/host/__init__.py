"""The host: starts every loop by name, takes groups over and lets go of them."""
