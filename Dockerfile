# The image: a static binary and the certificates of public authorities, nothing else. `docker build .` needs nothing but Docker.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
# The modules first: they change less often than the source.
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
# The repository's history isn't sent to who builds the image, so the version has to be told.
ARG TARGETOS TARGETARCH VERSION REVISION DATE
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false \
    -ldflags "-s -w -X github.com/rlnode/rlnode/node.release=$VERSION -X main.revision=$REVISION -X main.date=$DATE" \
    -o /out/rlnode ./cmd/rlnode
RUN mkdir /out/data

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/rlnode /rlnode
# What is copied belongs to root unless said otherwise; a new volume takes its owner from here.
COPY --from=build --chown=65532:65532 /out/data /data
USER 65532:65532
# In a container loopback is nobody else's. The ports between nodes stay on it all the same until there is a secret.
ENV RLNODE_DATA_DIR=/data RLNODE_BIND=0.0.0.0
VOLUME ["/data"]
# Checks; Envoy's rate limit service; gossip (TCP and UDP); calls between nodes and Raft; gossip between regions. The admin plane, 8081, listens on loopback
# unless told otherwise.
EXPOSE 8080 8082 6379 7946 7946/udp 7947 7948 7948/udp
HEALTHCHECK --interval=5s --timeout=3s --start-period=15s CMD ["/rlnode", "health"]
ENTRYPOINT ["/rlnode"]
CMD ["serve"]
