# A node: our engine with torch's CUDA build, which brings CUDA's libraries; the driver comes from the machine. Built in the
# root of the repository: make images
FROM python:3.11.13-slim-bookworm AS build
WORKDIR /source
COPY . .
RUN python -m venv /opt/fleetctl \
    && /opt/fleetctl/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt '.[engine]' \
    && /opt/fleetctl/bin/fleetctl-node --help > /dev/null

FROM python:3.11.13-slim-bookworm
LABEL org.opencontainers.image.title="fleetctl engine" \
      org.opencontainers.image.licenses="Apache-2.0"
# Triton compiles the launcher of each kernel with a C compiler, when the node warms up. Its version does not matter.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 fleetctl \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/cache/fleetctl --shell /usr/sbin/nologin fleetctl \
    && install -d -o 10001 -g 10001 -m 0700 /var/cache/fleetctl \
    && install -d -m 0755 /models
COPY --from=build /opt/fleetctl /opt/fleetctl
# Only /var/cache/fleetctl and /tmp are written to: the rest may be read-only. Compiled kernels are kept in the cache, which
# is best a volume that outlives the container.
ENV PATH=/opt/fleetctl/bin:$PATH \
    HOME=/var/cache/fleetctl \
    XDG_CACHE_HOME=/var/cache/fleetctl \
    NUMBA_CACHE_DIR=/var/cache/fleetctl/numba \
    TRITON_CACHE_DIR=/var/cache/fleetctl/triton \
    TORCHINDUCTOR_CACHE_DIR=/var/cache/fleetctl/inductor \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
WORKDIR /var/cache/fleetctl
EXPOSE 8000
# SIGTERM drains: requests move or finish within --drain-timeout.
STOPSIGNAL SIGTERM
# Ready is: every file has the checksum of the model's manifest.json, weights are loaded, kernels compiled and warmed up.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30m --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health/ready', timeout=4)"]
ENTRYPOINT ["fleetctl-node"]
CMD ["serve", "--model=/models/model", "--host=0.0.0.0", "--port=8000"]
