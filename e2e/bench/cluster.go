//go:build linux

package main

// What is measured of the service on a cluster of three rqlite nodes, which share the machine's two
// cores with it.

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// startNodes starts a cluster with the pets of a database. The first node leads, since the others
// join it.
func (b *bench) startNodes(d *database) (nodes []*server) {
	first := freeAddress()
	for i := range 3 {
		n := &server{address: freeAddress()}
		id := strconv.Itoa(i + 1)
		folder := filepath.Join(b.work, "node-"+n.address)
		if i == 0 {
			n.start(b, nil, "rqlited", "-node-id", id, "-http-addr", n.address,
				"-raft-addr", first, folder)
		} else {
			n.start(b, nil, "rqlited", "-node-id", id, "-http-addr", n.address,
				"-raft-addr", freeAddress(), "-join", first, folder)
		}
		n.await(n.get("/readyz"))
		nodes = append(nodes, n)
	}
	command(b.petstore, "restore", "-db", clusterOf(nodes), "-skip-ids", "0", d.path)
	return nodes
}

// clusterOf is the -db of a service.
func clusterOf(nodes []*server) string {
	var urls []string
	for _, n := range nodes {
		urls = append(urls, "http://"+n.address)
	}
	return strings.Join(urls, ",")
}

func stopNodes(nodes []*server) {
	for _, n := range nodes {
		n.kill()
	}
}

// clients are 1 to 256 that add pets, each of which waits for its response before its next request.
func (b *bench) clients() {
	d := b.database(10_000, 0)
	nodes := b.startNodes(d)
	defer stopNodes(nodes)
	debugFile := &server{address: freeAddress()}
	debugCluster := &server{address: freeAddress()}
	file := b.fresh(d, "-debug-addr", debugFile.address)
	cluster := b.serve(clusterOf(nodes), d.key, serverCore, nil,
		"-debug-addr", debugCluster.address)
	file.debug = debugFile
	cluster.debug = debugCluster
	for _, n := range b.sizes(2, 1, 2, 4, 8, 16, 32, 64, 128, 256) {
		onFile := target{file, always(file.add())}
		onCluster := target{cluster, always(cluster.add())}
		measured := b.inTurns(n, onFile, onCluster)
		b.record("file", n, measured[0]...)
		b.record("cluster", n, measured[1]...)
	}
	must(cluster.stop())
	file.discard()
}

// commits are counted by the service, and told at its debug address, if it has one.
func (s *server) commits() float64 {
	if s.debug == nil {
		return 0
	}
	const name = "\npetstore_commit_requests_count "
	a := s.debug.ask(s.get("/metrics"))
	_, after, _ := strings.Cut(string(a.Body), name)
	value, _, _ := strings.Cut(after, "\n")
	return must1(strconv.ParseFloat(value, 64))
}

// cluster compares the two engines.
func (b *bench) cluster() {
	d := b.database(10_000, 0)
	nodes := b.startNodes(d)
	defer stopNodes(nodes)
	for _, kind := range scenarios(d.pets) {
		if !kind.cluster {
			continue
		}
		file := b.fresh(d, kind.flags...)
		s := b.serve(clusterOf(nodes), d.key, serverCore, nil, kind.flags...)
		for _, n := range b.sizes(1, 1, clients) {
			what := fmt.Sprintf("%s, %d clients", kind.name, n)
			sent := s.answered
			leader, others := cpuOf(nodes)
			onCluster := target{s, kind.script(s)}
			onFile := target{file, kind.script(file)}
			measured := b.inTurns(n, onCluster, onFile)
			leaderAfter, othersAfter := cpuOf(nodes)
			micros := 1e6 / (s.answered - sent)
			compare("req/s", measured[0], measured[1])
			for _, f := range measured[0] {
				f["leader-µs"] = (leaderAfter - leader) * micros
				f["others-µs"] = (othersAfter - others) * micros
			}
			b.record(what, d.pets, measured[0]...)
		}
		must(s.stop())
		file.discard()
	}
}

// cpuOf is the time that the leader, and the other two together, have used, in seconds.
func cpuOf(nodes []*server) (leader, others float64) {
	leader = cpuTime(nodes[0].cmd)
	for _, n := range nodes[1:] {
		others += cpuTime(n.cmd)
	}
	return leader, others
}
