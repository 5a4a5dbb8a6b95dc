"""The example of a gateway to models beside LiteLLM's router, on the same load."""
