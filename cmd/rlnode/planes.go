package main

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// connection has the flags for reaching a node, which all client commands share.
type connection struct {
	CA      string         `name:"ca" type:"path" placeholder:"FILE" env:"RLNODE_CA" help:"Trust the certificates in this PEM file in addition to the system's."`
	Timeout *time.Duration `placeholder:"DURATION" help:"How long to wait for an answer (default 10s; leave and remove: 1m)."`
}

// defaultTimeout is how long most commands wait for an answer without --timeout.
const defaultTimeout = 10 * time.Second

// timeoutOr returns how long to wait for an answer; usual without --timeout.
func (c *connection) timeoutOr(usual time.Duration) time.Duration {
	if c.Timeout == nil {
		return usual
	}
	return *c.Timeout
}

// dataPlane has the flags of commands that ask for decisions.
type dataPlane struct {
	Addr  string `default:"http://127.0.0.1:8080" placeholder:"URL" env:"RLNODE_ADDR" help:"The node's data plane (default ${default})."`
	Token string `env:"RLNODE_API_TOKEN" placeholder:"TOKEN" help:"Bearer token, if the node needs one. ps shows the command line: the environment or a file is better."`

	TokenFile string `type:"path" env:"RLNODE_API_TOKEN_FILE" placeholder:"FILE" help:"The same, from a file."`
	connection
}

// adminPlane has the flags of commands that manage a node.
type adminPlane struct {
	Admin string `default:"http://127.0.0.1:8081" placeholder:"URL" env:"RLNODE_ADMIN" help:"The node's admin plane (default ${default})."`
	Token string `env:"RLNODE_ADMIN_TOKEN" placeholder:"TOKEN" help:"Bearer token, if the node needs one. ps shows the command line: the environment or a file is better."`

	TokenFile string `type:"path" env:"RLNODE_ADMIN_TOKEN_FILE" placeholder:"FILE" help:"The same, from a file."`
	connection
}

// answerFlags has the flags of commands that print an answer from the admin plane.
type answerFlags struct {
	JSON bool `help:"Print the node's answer unchanged."`
	adminPlane
}

// eitherPlane has the flags of commands that ask either plane: both answer them.
type eitherPlane struct {
	Addr      string `placeholder:"URL" env:"RLNODE_ADDR" help:"The node's data plane (default http://127.0.0.1:8080)."`
	Admin     string `placeholder:"URL" env:"RLNODE_ADMIN" help:"The node's admin plane (default http://127.0.0.1:8081). Either address is enough."`
	Token     string `placeholder:"TOKEN" help:"Bearer token, if the node asks for one. Better in RLNODE_ADMIN_TOKEN, or RLNODE_API_TOKEN for the data plane, because ps shows the command line."`
	TokenFile string `type:"path" placeholder:"FILE" help:"The same, from a file; also RLNODE_ADMIN_TOKEN_FILE and RLNODE_API_TOKEN_FILE."`
	connection
}

func (d *dataPlane) client() (*remote, error) {
	return d.newRemote("--addr", "RLNODE_API_TOKEN", d.Addr, &d.Token, &d.TokenFile)
}

func (a *adminPlane) client() (*remote, error) {
	return a.newRemote("--admin", "RLNODE_ADMIN_TOKEN", a.Admin, &a.Token, &a.TokenFile)
}

// data returns the data plane, or the admin plane if only its address is given.
func (e *eitherPlane) data() (*remote, error) {
	if e.Addr == "" && e.Admin != "" {
		return e.admin()
	}
	token, file := e.token("RLNODE_API_TOKEN")
	return e.newRemote("--addr", "RLNODE_API_TOKEN", cmp.Or(e.Addr, "http://127.0.0.1:8080"), &token, &file)
}

// probed returns the plane to probe, which needs no token: the data plane, or
// the admin plane if only its address is given.
func (e *eitherPlane) probed() (*remote, error) {
	noToken, noFile := "", ""
	if e.Addr == "" && e.Admin != "" {
		return e.newRemote("--admin", "", e.Admin, &noToken, &noFile)
	}
	return e.newRemote("--addr", "", cmp.Or(e.Addr, "http://127.0.0.1:8080"), &noToken, &noFile)
}

// admin returns the admin plane.
func (e *eitherPlane) admin() (*remote, error) {
	token, file := e.token("RLNODE_ADMIN_TOKEN")
	return e.newRemote("--admin", "RLNODE_ADMIN_TOKEN", cmp.Or(e.Admin, "http://127.0.0.1:8081"), &token, &file)
}

// onlyData reports whether only the data plane's address is given.
func (e *eitherPlane) onlyData() bool { return e.Addr != "" && e.Admin == "" }

// token returns the token or its file: from the flags, or else from the environment.
func (e *eitherPlane) token(env string) (token, file string) {
	if e.Token != "" || e.TokenFile != "" {
		return e.Token, e.TokenFile
	}
	return os.Getenv(env), os.Getenv(env + "_FILE")
}

// newRemote returns a client of the plane at address, which flag has set. The
// token may also come from a file. env is the variable to name in hints.
func (c *connection) newRemote(flag, env, address string, token, tokenFile *string) (*remote, error) {
	if err := readToken("--token", token, *tokenFile); err != nil {
		return nil, usageError("%w", err)
	}

	*tokenFile = "" // already read
	base, err := parseBase(address)
	if err != nil {
		return nil, usageError("%s: %w", flag, err)
	}
	if c.Timeout != nil && *c.Timeout <= 0 {
		return nil, usageError("--timeout: %v is not above 0", *c.Timeout)
	}

	config, err := c.tls()
	if err != nil {
		return nil, usageError("--ca: %w", err)
	}

	return &remote{
		base: base.Scheme + "://" + base.Host, flag: flag, token: *token, tokenVar: env, timeoutOr: c.timeoutOr,
		transport: &http.Transport{TLSClientConfig: config},
	}, nil
}

// parseBase reads the address of a node: a URL without a path, or just host and port.
func parseBase(address string) (*url.URL, error) {
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}

	u, err := url.Parse(address)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the address: %w", err)
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("%q is neither http nor https", address)
	case u.Hostname() == "":
		return nil, fmt.Errorf("%q has no host", address)
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil || u.Fragment != "":
		return nil, fmt.Errorf("%q has more than scheme, host and port", address)
	}

	return u, nil
}

func (c *connection) tls() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CA == "" {
		return config, nil
	}

	pem, err := os.ReadFile(c.CA)
	if err != nil {
		return nil, err
	}

	config.RootCAs, err = x509.SystemCertPool()
	if err != nil {
		config.RootCAs = x509.NewCertPool()
	}

	if !config.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate in PEM", c.CA)
	}

	return config, nil
}
