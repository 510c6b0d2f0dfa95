"""What a resource manager sends, item by item: read, refused or done."""
