"""The container backend: docker, podman and nerdctl through their command line, with runc, crun or gVisor's runsc."""
