# Controller, gateway and command line. Built in the root of the repository: make images
FROM python:3.11.13-slim-bookworm AS build
WORKDIR /source
COPY . .
RUN python -m venv /opt/fleetctl \
    && /opt/fleetctl/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt '.[postgres,bedrock,kubernetes]' \
    && /opt/fleetctl/bin/fleetctl --help > /dev/null

FROM python:3.11.13-slim-bookworm
LABEL org.opencontainers.image.title="fleetctl control plane" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 fleetctl \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/fleetctl --shell /usr/sbin/nologin fleetctl \
    && install -d -o 10001 -g 10001 -m 0700 /var/lib/fleetctl
COPY --from=build /opt/fleetctl /opt/fleetctl
# Only /var/lib/fleetctl and /tmp are written to: the rest may be read-only. Bytecode was compiled at the installation.
ENV PATH=/opt/fleetctl/bin:$PATH \
    HOME=/var/lib/fleetctl \
    FLEETCTL_STATE_DIR=/var/lib/fleetctl \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HEALTH_URL=http://127.0.0.1:7700/health/live
USER 10001:10001
WORKDIR /var/lib/fleetctl
EXPOSE 7700 7800
STOPSIGNAL SIGTERM
# Outside of Kubernetes, which has probes of its own. A gateway is started with HEALTH_URL=http://127.0.0.1:7800/gateway/status
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=6 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(os.environ['HEALTH_URL'], timeout=4)"]
ENTRYPOINT ["fleetctl"]
CMD ["controller", "run"]
