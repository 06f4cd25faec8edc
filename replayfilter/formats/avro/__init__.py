"""The "avro" format: reading values, and finding the schemas that wrote them."""
