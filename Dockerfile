# The official image of a server, with the module. BASE may be any image of Redis 7.0 or newer, or Valkey 8.0 or
# newer, that is based on Debian 12 or newer, or on Alpine:
#
#     docker build -t redis-rl .
#     docker build -t valkey-rl --build-arg BASE=valkey/valkey:9.1 .
ARG BASE=redis:8
# hadolint ignore=DL3006
FROM ${BASE} AS base

# Debian 12, so that the module runs on it and on anything newer.
FROM rust:1-bookworm AS build
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends libclang-dev musl-tools && rm -rf /var/lib/apt/lists/*
WORKDIR /redis-rl
COPY . .
# Alpine's C library is musl.
RUN --mount=from=base,target=/base \
    if [ -e /base/etc/alpine-release ]; then make musl && cp target/*-musl/release/libredis_rl.so /; \
    else make build && cp target/release/libredis_rl.so /; fi

FROM base
LABEL org.opencontainers.image.title="redis-rl" \
      org.opencontainers.image.description="A server with redis-rl, the unofficial module that limits rates" \
      org.opencontainers.image.licenses="BSD-3-Clause"
COPY --from=build /libredis_rl.so /usr/lib/redis/modules/
# Arguments to `docker run` replace this line. A configuration file among them must load the module: if an argument does,
# CONFIG REWRITE adds it to the file, and a server that is to load it twice does not start.
CMD ["--loadmodule", "/usr/lib/redis/modules/libredis_rl.so"]
