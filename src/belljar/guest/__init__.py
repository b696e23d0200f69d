"""What runs INSIDE a container: the standard library only, nothing of belljar but these modules.

The host sends their source through the container's stdin (`belljar.backends.container.jar.guest_program`), so that any
image with a Python will do and none has to hold belljar. All of it runs as the jar's user, before or beside
the code: it must not trust what the code leaves behind, and it holds no secret.
"""
