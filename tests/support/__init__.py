"""What tests share: brokers and services in processes, streams, the reference model, readers of topics."""
