// Package secret derives all keys and certificates that protect the traffic
// between nodes from one shared secret.
//
// A secret is 32 random bytes. [Secret.GossipKey] encrypts gossip. A [Secret]
// is also the root of an Ed25519 certificate authority, whose certificate is
// the same wherever it is derived. Each node issues itself a certificate from
// it at startup, so certificates are never handed out or renewed, and never
// expire. Anyone who has the secret can pose as any node.
//
// [Open] follows a file with one secret, or two during a change: the first one
// is used, both are accepted.
package secret
