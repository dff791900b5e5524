package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// chooseClusterBind decides where the ports between nodes are bound. A lone
// node without a secret keeps them on loopback. It leaves reporting mistakes in
// other settings to the node.
func (c *serveCmd) chooseClusterBind() {
	bind, err := netip.ParseAddr(c.Bind)
	if c.ClusterBind != "" || err != nil { // reported elsewhere
		return
	}
	c.ClusterBind = c.Bind
	open := c.ClusterSecretFile == "" && c.TLSCert == "" && !c.InsecureCluster // to anyone who can reach the ports
	c.alone = open && len(c.Join) == 0 && len(c.WANJoin) == 0 && c.BootstrapExpect <= 1
	if c.alone && !bind.IsLoopback() {
		c.ClusterBind = "127.0.0.1"
		c.Advertise = "127.0.0.1"
	}
}

// readGossipKey returns the key of --gossip-key; nil if it is not set.
func (c *serveCmd) readGossipKey() ([]byte, error) {
	text := c.GossipKey
	if c.GossipKeyFile != "" {
		if text != "" {
			return nil, errors.New("--gossip-key and --gossip-key-file exclude each other")
		}

		file, err := readFile(&environment{}, c.GossipKeyFile, maxToken)
		if err != nil {
			return nil, fmt.Errorf("--gossip-key-file: %w", err)
		}
		text = strings.TrimSpace(string(file))
		if text == "" {
			return nil, fmt.Errorf("--gossip-key-file: %s holds no key", c.GossipKeyFile)
		}
	}

	key, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, errors.New("--gossip-key: it is not 16, 24 or 32 bytes in base64")
	}

	return key, nil
}
