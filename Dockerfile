# The official image of a server, with the module. BASE may be any Redis from 7.0 or Valkey from 8.0
# on that Debian 12 or newer lies under:
#
#     docker build -t redis-rl .
#     docker build -t valkey-rl --build-arg BASE=valkey/valkey:9.1 .
ARG BASE=redis:8

# Debian 12, for a module that runs on it and on what is newer.
FROM rust:1-bookworm AS build
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends libclang-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /redis-rl
COPY . .
RUN cargo build --release --locked --lib

FROM ${BASE}
COPY --from=build /redis-rl/target/release/libredis_rl.so /usr/lib/redis/modules/
# Arguments to `docker run` take the place of this line: name the module among them too.
CMD ["--loadmodule", "/usr/lib/redis/modules/libredis_rl.so"]
