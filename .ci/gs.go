// Package gs stands for Litestream's client of Google's storage, which no test uses: see litestream
// in .ci/run.
package gs

import "github.com/benbjohnson/litestream"

// ReplicaClient can do nothing.
type ReplicaClient struct {
	litestream.ReplicaClient
	Bucket, Path string
}

// NewReplicaClient returns one.
func NewReplicaClient() *ReplicaClient { return &ReplicaClient{} }
