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

// greet says once the node is ready what is worth knowing then. In logs for people, it also says what to do next; that is no
// log line, because quotes would be escaped there and the command would not work as printed.
func (c *serveCmd) greet(log *slog.Logger, w io.Writer, n *node.Node, files uint64) {
	if c.alone {
		log.Info("nodes on other machines can't join this one: without --cluster-secret-file the ports between nodes stay on loopback")
	}
	if files > 0 {
		log.Info("fewer connections than there could be: the limit on open files is low", "files", files, "wanted", wantedFiles)
	}
	if c.LogFormat == "text" && log.Enabled(context.Background(), slog.LevelInfo) {
		data, admin := c.url(n.DataAddr()), c.url(n.AdminAddr())
		envoy := ""
		if at := n.GRPCAddr(); at != nil {
			envoy = fmt.Sprintf("  envoy      %s (gRPC)\n", strings.TrimPrefix(strings.TrimPrefix(c.url(at), "http://"), "https://"))
		}
		fmt.Fprintf(w, "\n  checks     %s\n%s  operator   %s\n  dashboard  %s/ui/\n  try it     curl -s %s%s/v1/check -d '{\"attributes\": {\"ip\": \"198.51.100.7\"}}'\n\n",
			data, envoy, admin, admin, c.authorization(), data)
	}
}

// url returns where this machine reaches a plane that listens at an address.
func (c *serveCmd) url(address net.Addr) string {
	scheme, at := "http://", address.String()
	if c.HTTPCert != "" {
		scheme = "https://"
	}
	if ip, err := netip.ParseAddrPort(at); err == nil && ip.Addr().IsUnspecified() {
		at = net.JoinHostPort("127.0.0.1", strconv.Itoa(int(ip.Port())))
	}
	return scheme + at
}

// authorization returns the option by which curl sends a token for checks; empty if the node asks for none. It never has the
// token itself: logs are no place for it.
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

// cantListen matches what the system says of an address that a node can't listen at. Not every library hands on the error
// itself.
var cantListen = regexp.MustCompile(`listen (tcp|udp) (\S+): bind: (address already in use|permission denied|cannot assign requested address)`)

// explain says which settings made the node listen where it can't, and what to do.
func (c *serveCmd) explain(err error) error {
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
		from := set(host, [2]string{"--bind", c.Bind}, [2]string{"--admin-bind", c.AdminBind}, [2]string{"--cluster-bind", c.ClusterBind})
		return fmt.Errorf("%s: this machine has no address %s: %w", append(from, "--bind")[0], host, err) // the others follow from --bind
	}
	flags := strings.Join(set(port, [2]string{"--http-port", strconv.Itoa(c.HTTPPort)}, [2]string{"--admin-port", strconv.Itoa(c.AdminPort)},
		[2]string{"--grpc-port", strconv.Itoa(c.GRPCPort)}, [2]string{"--gossip-port", strconv.Itoa(c.GossipPort)}, [2]string{"--peer-port", strconv.Itoa(c.PeerPort)}), ", ")
	if found[3] == "permission denied" {
		return fmt.Errorf("%s: port %s needs a privilege, as those below 1024 do; take a higher one: %w", flags, port, err)
	}
	return fmt.Errorf("%s: port %s is in use, perhaps by another node on this machine (lsof -i :%s tells by what); stop that, or take another port: %w",
		flags, port, port, err)
}
