"""From a recorded value to a sent upload: metric cache, writer, uploader, background sender."""
