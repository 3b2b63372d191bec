"""One folder a protocol, the contract they keep, and the registry that finds them."""
