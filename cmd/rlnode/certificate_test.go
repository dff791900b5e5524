package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// certificate makes a self-signed certificate for 127.0.0.1.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	expect.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "rlnode test"}, IsCA: true,
		BasicConstraintsValid: true,
		NotBefore:             time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	expect.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	expect.NoError(t, err)
	return file(t, "cert.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))),
		file(t, "key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})))
}

// runTool starts a command and leaves it running.
func runTool(t *testing.T, out *process.Output, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = cleanEnv(), out, out
	expect.NoError(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill() })
	return cmd
}

// A node shows for how long its certificate is valid.
func TestCertificateExpiry(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	s := start(t, t.TempDir(), "--http-cert", cert, "--http-key", key)
	status, text, err := s.call("GET", s.admin+"/metrics", "", "")
	found := regexp.MustCompile(`(?m)^rlnode_certificate_expiry_seconds\{use="http"\} (\S+)$`).FindStringSubmatch(text)
	if err != nil || status != 200 || found == nil {
		t.Fatalf("metrics: got %v %d, without the metric", err, status)
	}
	if left, err := strconv.ParseFloat(found[1], 64); err != nil || left < 1 || left > 3600 {
		t.Errorf("got %s, %v", found[1], err)
	}
}
