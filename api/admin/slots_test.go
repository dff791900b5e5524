package admin_test

import (
	"testing"

	"github.com/rlnode/rlnode/api/apitest"
)

func TestSlots(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(c *apitest.Config) { c.MaxConnections = 64; apitest.TheirTokens(c) })
	apitest.CheckSlots(t, n.Admin.Addr().String(), getCluster, n.Admin.Connections())
}

func TestStrangersGiveWay(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(c *apitest.Config) { c.MaxConnections = 64; apitest.TheirTokens(c) })
	apitest.CheckStrangers(t, n.Admin.Addr().String(), getCluster, n.Admin.Connections())
}

const getCluster = "GET /v1/cluster HTTP/1.1\r\nHost: localhost\r\n\r\n"
