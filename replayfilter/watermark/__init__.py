"""The low-watermark service: a server that keeps a table of stages and origins, and its clients."""
