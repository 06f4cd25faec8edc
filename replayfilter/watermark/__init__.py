"""The low-watermark service: a table of stages and origins, kept by a server, fed by clients."""
