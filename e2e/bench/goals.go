//go:build linux

package main

// What the service is to reach, and whether it does.

import (
	"fmt"
	"math"
	"strings"
)

// goal is what some figures of a section, at one place of its axis, are to reach.
type goal struct {
	what    string
	section string
	x       float64
	unit    string
	bound   bound
	figures []limited
}

// limited is the name of what was measured, and its limit.
type limited struct {
	name  string
	limit float64
}

// bound is which side of a limit is good.
type bound string

const (
	atLeast bound = "at least"
	atMost  bound = "at most"
)

// holds reports whether a value keeps a limit, or misses it by at most a share of the limit.
func (side bound) holds(value, limit, tolerance float64) bool {
	if side == atLeast {
		return value >= limit*(1-tolerance)
	}
	return value <= limit*(1+tolerance)
}

// Numbers of pets.
const tenThousand, million, tenMillion = 10_000, 1_000_000, 10_000_000

var goals = []goal{
	{
		"pages and a pet from memory, to the ceiling", "speed", tenThousand, "ratio", atLeast,
		[]limited{
			{"list of 20", 0.90}, {"the same, filtered", 0.90}, {"list of 100", 0.90},
			{"fetch, one id", 0.90},
		},
	},
	{
		"a page that is not in memory, to the ceiling", "speed", tenThousand, "ratio", atLeast,
		[]limited{{"list of 20, not in memory", 0.33}, {"page at a random place", 0.33}},
	},
	{
		"following all pages of 200,000 pets, to the ceiling", "speed", 200_000, "ratio", atLeast,
		[]limited{
			{"8 clients follow all pages of 20", 0.80}, {"8 clients follow all pages of 100", 0.80},
		},
	},
	{
		"random fetches among 10,000 pets, to the ceiling", "speed", tenThousand, "ratio", atLeast,
		[]limited{{"fetch, random id", 0.80}},
	},
	{
		"random fetches among 1,000,000 pets, to the ceiling", "speed", million, "ratio", atLeast,
		[]limited{{"fetch, random id", 0.45}},
	},
	{
		"new pets of 64 clients, to the ceiling", "speed", tenThousand, "ratio", atLeast,
		[]limited{{"add, on disk", 0.42}},
	},
	{
		"new pets for each commit, 1 client", "clients", 1, "adds/commit", atLeast,
		[]limited{{"file", 1}},
	},
	{"the same, 8 clients", "clients", 8, "adds/commit", atLeast, []limited{{"file", 3}}},
	{"the same, 64 clients", "clients", 64, "adds/commit", atLeast, []limited{{"file", 20}}},
	{
		"times PocketBase: list, filtered, list of 100, fetch, add",
		"peers", peerPets, "ratio", atLeast,
		[]limited{
			{"PocketBase: " + opList, 18}, {"PocketBase: " + opFiltered, 18},
			{"PocketBase: " + opHundred, 28}, {"PocketBase: " + opFetch, 9},
			{"PocketBase: " + opUnsynced, 8},
		},
	},
	{
		"times Fastify: list, fetch, add", "peers", peerPets, "ratio", atLeast,
		[]limited{
			{fastifyName + ": " + opList, 3.7}, {fastifyName + ": " + opFetch, 1.5},
			{fastifyName + ": " + opSynced, 6},
		},
	},
	{
		"p99 of the list and of new pets, to the ceiling's",
		"speed", tenThousand, "p99-ratio", atMost,
		[]limited{{"list of 20", 2}, {"add, on disk", 2}},
	},
	{
		"32 readers beside 8 writers on one core: reads, to those without writers",
		"onecore", tenThousand, "ratio", atLeast, []limited{{"32 readers beside writers", 0.5}},
	},
	{
		"the same: p99 of the reads, ms", "onecore", tenThousand, "p99-ms", atMost,
		[]limited{{"32 readers beside writers", 4}},
	},
	{
		"the same: new pets per second", "onecore", tenThousand, "req/s", atLeast,
		[]limited{{"8 writers beside readers", 5000}},
	},
	{
		"CPU with 1,000,000 pets, to 10,000: list; one pet", "growth", million, "ratio", atMost,
		[]limited{{"list of 20", 1.1}, {"fetch, one id", 1.3}},
	},
	{
		"CPU of any page with 10,000,000 pets, to 10,000", "growth", tenMillion, "ratio", atMost,
		[]limited{{"page at a random place", 1.6}},
	},
	{
		"bytes on disk for each of 10,000 pets", "memory", tenThousand, "value", atMost,
		[]limited{{"bytes on disk for each pet", 40}},
	},
	{
		"resident MiB with 1,000,000 pets: idle, after 64 and 512 connections",
		"memory", million, "value", atMost, []limited{
			{"resident MiB, idle", 14}, {"MiB after 64 connections", 32},
			{"MiB after 512 connections", 50},
		},
	},
	{
		"ms from the start to the first response with 1,000,000 pets; after a kill",
		"memory", million, "value", atMost, []limited{
			{"ms from start to the first response", 15},
			{"ms, the same after a kill under load", 25},
		},
	},
	{
		"MB of the stripped program", "memory", million, "value", atMost,
		[]limited{{"MB of the stripped program", 14}},
	},
}

// tellGoals tells what was reached of each goal. With -short, all may be missed by a tenth.
func (b *bench) tellGoals() {
	tolerance := 0.0
	if b.short {
		tolerance = 0.1
	}
	measured := map[string]*results{}
	date := ""
	for _, s := range sections {
		if r := b.read(s.name); r != nil {
			measured[s.name] = r
			date = max(date, r.date)
		}
	}
	var rows []string
	for _, g := range goals {
		rows = append(rows, g.what)
	}
	cell := func(row, column int) string {
		g := goals[row]
		var limits, values []string
		holds := "yes"
		for _, f := range g.figures {
			value := math.NaN()
			if r := measured[g.section]; r != nil {
				value = r.value(f.name, g.x, g.unit)
			}
			limits = append(limits, fmt.Sprint(f.limit))
			values = append(values, number(value))
			switch {
			case math.IsNaN(value):
				holds = missing
			case !g.bound.holds(value, f.limit, tolerance):
				holds = "no"
			}
		}
		texts := []string{
			string(g.bound) + " " + strings.Join(limits, "; "), strings.Join(values, "; "), holds,
		}
		return texts[column]
	}
	b.show(table{"goals", "", rows, []string{"goal", "reached", "holds"}, cell}, date)
}
