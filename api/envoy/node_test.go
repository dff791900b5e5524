package envoy

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/api/rls"
	"github.com/rlnode/rlnode/internal/expect"
)

func TestMain(m *testing.M) { os.Exit(apitest.Main(m)) }

// node is a node under test, with a connection to its door.
type node struct {
	*apitest.Node
	server *Server
	conn   *grpc.ClientConn
}

// startNode starts a node with these rules on free ports. It is ready unless
// change, which may be nil, says otherwise.
func startNode(t testing.TB, rules string, change func(*apitest.Config)) *node {
	t.Helper()
	n := &node{}
	n.Node = apitest.Start(t, change, func(d *api.Doors, c apitest.Config) (_ apitest.DataPlane, err error) {
		n.server, err = Open(d, Config{Addr: "127.0.0.1:0", Tracer: c.Tracer})
		return n.server, err
	})
	n.UseRules(rules)
	n.conn = dial(t, n)
	return n
}

// dial returns a connection to a node's door.
func dial(t testing.TB, n *node, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	conn, err := grpc.NewClient(n.server.Addr().String(), options...)
	expect.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() }) // before the node's own cleanup
	return conn
}

// message returns an empty message of the schema.
func message(t testing.TB, name string) *dynamicpb.Message {
	t.Helper()
	d, err := rls.Schema().FindDescriptorByName(protoreflect.FullName("envoy.service.ratelimit.v3." + name))
	expect.NoError(t, err)
	return dynamicpb.NewMessage(d.(protoreflect.MessageDescriptor))
}

// ask sends a request given as JSON, and returns the answer as JSON without
// duration_until_reset. token may be empty.
func ask(t testing.TB, conn *grpc.ClientConn, token, request string, options ...grpc.CallOption) (string, error) {
	t.Helper()
	in, out := message(t, "RateLimitRequest"), message(t, "RateLimitResponse")
	expect.NoError(t, protojson.Unmarshal([]byte(request), in))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	if err := conn.Invoke(ctx, path, in, out, options...); err != nil {
		return "", err
	}
	return text(t, out), nil
}

// text returns an answer as JSON without duration_until_reset.
func text(t testing.TB, m proto.Message) string {
	t.Helper()
	b, err := protojson.Marshal(m)
	expect.NoError(t, err)
	var fields map[string]any
	expect.NoError(t, json.Unmarshal(b, &fields))
	if list, ok := fields["statuses"].([]any); ok {
		for _, s := range list {
			delete(s.(map[string]any), "durationUntilReset")
		}
	}
	b, err = json.Marshal(fields) // sorts by name
	expect.NoError(t, err)
	return string(bytes.ReplaceAll(b, []byte(`"`), nil))
}

// answer is like ask without a token, and fails the test on an error.
func (n *node) answer(request string) string {
	n.T.Helper()
	have, err := ask(n.T, n.conn, "", request)
	if err != nil {
		n.T.Fatalf("%s: %v", request, err)
	}
	return have
}
