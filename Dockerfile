# Built by `make image`, which makes the static binary first. Nothing is pulled: there is nothing in the image but it.
FROM scratch
COPY bin/image/rlnode /rlnode
# What is copied belongs to root unless said otherwise; a new volume takes its owner from here.
COPY --chown=65532:65532 bin/image/data /data
USER 65532:65532
# In a container loopback is nobody else's. The ports between nodes stay on it all the same until there is a secret.
ENV RLNODE_DATA_DIR=/data RLNODE_BIND=0.0.0.0
VOLUME ["/data"]
# Checks; gossip (TCP and UDP); calls between nodes and Raft. The admin plane listens on loopback unless told otherwise.
EXPOSE 8080 7946 7946/udp 7947 7948 7948/udp
HEALTHCHECK --interval=5s --timeout=3s --start-period=15s CMD ["/rlnode", "health"]
ENTRYPOINT ["/rlnode"]
CMD ["serve"]
