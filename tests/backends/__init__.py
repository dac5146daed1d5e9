"""What coordinates processes: scripts, connections and codecs, on Redis servers of their own."""
