// Package secret derives from one shared secret everything that the nodes of a cluster protect each other with.
//
// A secret is 32 random bytes. [Secret.GossipKey] encrypts gossip. [Secret] is also the root of an Ed25519 certificate
// authority, whose certificate is the same wherever it is derived: each node issues itself a certificate from it when it
// starts, so that no certificate is ever handed out, renewed or expires. Whoever has the secret can be every node.
//
// [Open] follows a file with one secret, or two while it is being changed: the first one is used, both are accepted.
package secret
