"""Copy a store to another database: all of it, exactly, and either to move it or as a snapshot."""
