"""Messages as frames (RFC 3) and payloads as bytes: header, codecs, bundles, signed jobspecs."""
