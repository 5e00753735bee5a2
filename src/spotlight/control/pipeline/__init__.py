"""Who does what when, so that no slot waits: parts of steps, rows over ranks, assisting trainers, stale samples."""
