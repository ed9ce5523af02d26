"""The wire between parent and worker; the standard library only, so that both can import it under any interpreter."""
