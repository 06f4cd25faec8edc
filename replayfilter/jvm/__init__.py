"""Java, and the jars that Spark and the development broker need."""
