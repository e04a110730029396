"""The drivers: they answer what flows ask for, one blocking, one asyncio."""
