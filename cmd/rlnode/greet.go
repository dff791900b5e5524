package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/rlnode/rlnode/node"
)

// logHints logs hints once the node is ready. With text logs, it also prints
// the node's URLs and a command to try. They are not a log line: it would
// escape quotes, and the command would not work as printed.
func (c *serveCmd) logHints(log *slog.Logger, w io.Writer, n *node.Node, files uint64) {
	if c.alone {
		log.Info("nodes on other machines can't join this one: without --cluster-secret-file, the ports between nodes stay on loopback")
	}
	if files > 0 {
		log.Info("the limit on open files is low, which limits connections", "files", files, "wanted", wantedFileLimit)
	}

	if c.LogFormat == "text" && log.Enabled(context.Background(), slog.LevelInfo) {
		data, admin := c.url(n.DataAddr()), c.url(n.AdminAddr())
		envoy := ""
		if at := n.GRPCAddr(); at != nil {
			envoy = fmt.Sprintf("  envoy      %s (gRPC)\n", hostOf(c.url(at)))
		}

		redis := ""
		if at := n.RedisAddr(); at != nil {
			redis = fmt.Sprintf("  redis      %s\n", hostOf(c.url(at)))
		}

		fmt.Fprintf(w,
			"\n  checks     %s\n%s%s  operator   %s\n  dashboard  %s/ui/\n  try it     curl -s %s%s/v1/check -d '{\"attributes\": {\"ip\": \"198.51.100.7\"}}'\n\n",
			data, envoy, redis, admin, admin, c.authorization(), data)
	}
}

// hostOf returns the host and port of a URL.
func hostOf(url string) string {
	_, host, _ := strings.Cut(url, "://")
	return host
}

// url returns the URL at which this machine reaches a plane that listens at address.
func (c *serveCmd) url(address net.Addr) string {
	scheme := "http://"
	at := address.String()
	if c.HTTPCert != "" {
		scheme = "https://"
	}
	if ip, err := netip.ParseAddrPort(at); err == nil && ip.Addr().IsUnspecified() {
		at = net.JoinHostPort("127.0.0.1", strconv.Itoa(int(ip.Port())))
	}
	return scheme + at
}

// authorization returns curl's option to send a token for checks; empty if the
// node needs none. It never contains the token itself, which must not end up in
// logs.
func (c *serveCmd) authorization() string {
	token := "$TOKEN" // one of --tokens-file, or from the command line
	switch {
	case c.TokensFile == "" && c.APIToken == "" && c.AdminToken == "":
		return ""
	case c.APITokenFile != "":
		token = "$(cat '" + c.APITokenFile + "')"
	case c.AdminTokenFile != "":
		token = "$(cat '" + c.AdminTokenFile + "')"
	case c.APIToken != "" && c.APIToken == os.Getenv("RLNODE_API_TOKEN"):
		token = "$RLNODE_API_TOKEN"
	case c.AdminToken != "" && c.AdminToken == os.Getenv("RLNODE_ADMIN_TOKEN"):
		token = "$RLNODE_ADMIN_TOKEN"
	}

	return `-H "Authorization: Bearer ` + token + `" `
}

// cantListen matches the system's error for an address at which a node can't
// listen. It matches text because not every library wraps the error.
var cantListen = regexp.MustCompile(`listen (tcp|udp) (\S+): bind: (address already in use|permission denied|cannot assign requested address)`)

// explainListenError adds to a listen error which settings caused it, and what to do.
func (c *serveCmd) explainListenError(err error) error {
	if err == nil {
		return nil
	}

	found := cantListen.FindStringSubmatch(err.Error())
	if found == nil {
		return err
	}

	host, port, _ := net.SplitHostPort(found[2])
	set := func(value string, settings ...[2]string) (flags []string) {
		for _, s := range settings {
			if s[1] == value {
				flags = append(flags, s[0])
			}
		}
		return flags
	}

	if found[3] == "cannot assign requested address" {
		from := set(host, [2]string{"--bind", c.Bind}, [2]string{"--admin-bind", c.AdminBind},
			[2]string{"--cluster-bind", c.ClusterBind})
		// Other addresses derive from --bind.
		return fmt.Errorf("%s: this machine has no address %s: %w", append(from, "--bind")[0], host, err)
	}

	flags := strings.Join(set(port, [2]string{"--http-port", strconv.Itoa(c.HTTPPort)},
		[2]string{"--admin-port", strconv.Itoa(c.AdminPort)},
		[2]string{"--grpc-port", strconv.Itoa(c.GRPCPort)}, [2]string{"--redis-port",
			strconv.Itoa(c.RedisPort)}, [2]string{"--gossip-port",
			strconv.Itoa(c.GossipPort)}, [2]string{"--peer-port", strconv.Itoa(c.PeerPort)}), ", ")
	if found[3] == "permission denied" {
		return fmt.Errorf("%s: port %s needs a privilege, like all ports below 1024; use a higher one: %w", flags, port, err)
	}

	return fmt.Errorf("%s: port %s is in use, perhaps by another node on this machine (see lsof -i :%s); stop that, or use another port: %w",
		flags, port, port, err)
}
