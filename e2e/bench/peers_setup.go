//go:build linux

package main

// How each system that the service is compared with is built, filled, and started: as its own documentation advises for
// speed. Where that leaves a choice, the faster way is taken. None of them may log requests, as the service does not.

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	ourName      = "Pet Store"
	ceilingName  = "ceiling"
	ourSetup     = "checks the key and both limits; what has not changed is sent from memory; new pets of many requests share a sync."
	ceilingSetup = "a bare net/http server that sends the bytes and headers of Pet Store, and does nothing else."
)

// peerPassword is that of everybody who needs one.
const peerPassword = "bench-password"

// buildPeers installs what is missing; versions are pinned in e2e/peers.
func (b *bench) buildPeers() {
	if _, err := exec.LookPath("rqlited"); err != nil {
		fail("rqlited is not on the PATH: .ci/rqlited builds it")
	}
	if err := exec.CommandContext(b.ctx, debianPython, "-c", "import fastapi, uvicorn, uvloop, httptools, ujson").Run(); err != nil {
		fail("on Debian: apt install python3-fastapi uvicorn python3-uvloop python3-httptools python3-ujson")
	}
	say("building PocketBase")
	b.pocketbase = filepath.Join(b.work, "pocketbase")
	b.commandIn(filepath.Join("peers", "pocketbase"), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", b.pocketbase,
		"github.com/pocketbase/pocketbase/examples/base")
	fastify := filepath.Join("peers", "fastify")
	compiled := filepath.Join(fastify, "node_modules", "better-sqlite3", "build", "Release", "better_sqlite3.node")
	if _, err := os.Stat(compiled); err != nil {
		say("installing Fastify and compiling better-sqlite3")
		b.commandIn(fastify, "npm", "ci", "--no-audit", "--no-fund", "--loglevel=error")
	}
}

func (b *bench) commandIn(folder, name string, args ...string) {
	cmd := exec.CommandContext(b.ctx, name, args...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		fail("%s in %s: %w\n%s", name, folder, err, out)
	}
}

// startPeers starts all of them with the same pets, the service first.
func (b *bench) startPeers() []*peer {
	d := b.database(b.animals[0], 0)
	plain := b.plainDatabase(d)
	defer remove(plain)
	service := b.ourselves(d)
	all := []*peer{service, b.ceilingOf(service), b.fastify(plain), b.fastapi(plain), b.startPocketBase(plain), b.rqlite(plain)}
	for _, p := range all {
		for _, s := range p.processes() {
			s.warmWith(p.sample[opList])
		}
	}
	return all
}

func (b *bench) ourselves(d *database) *peer {
	s := b.fresh(d, nil)
	p := &peer{name: ourName, setup: ourSetup, pets: petsOf, added: map[*server]float64{}, size: map[string]float64{}}
	p.servers = everywhere(s, opList, opFiltered, opHundred, opGet, opSynced)
	p.lua, p.sample = theSame(s)
	return p
}

// ceilingOf sends what the service sends, with a port for each operation.
func (b *bench) ceilingOf(service *peer) *peer {
	own := service.servers[opList]
	all := []scenario{
		{name: opList, samples: []string{listHot}},
		{name: opFiltered, samples: []string{listHot + "?limit=20&status=sold"}},
		{name: opHundred, samples: []string{listHot + "?limit=100"}},
		{name: opGet, samples: []string{listHot + "/5"}},
		{name: opSynced, samples: []string{create}},
	}
	var ports []*canned
	for _, sc := range all {
		ports = append(ports, own.capture(sc.samples))
	}
	service.added[own]++ // by capture
	p := &peer{name: ceilingName, setup: ceilingSetup, pets: petsOf, added: map[*server]float64{}, size: map[string]float64{}, servers: map[string]*server{}}
	for i, s := range b.startCeiling(ports, all) {
		s.key = own.key
		p.servers[all[i].name] = s
	}
	p.lua, p.sample = theSame(own)
	return p
}

// plainDatabase has the pets in a table as one would write it, for those that read SQLite themselves.
func (b *bench) plainDatabase(d *database) string {
	path := filepath.Join(b.work, "plain.db")
	db := open(path)
	defer db.Close()
	must1(db.ExecContext(b.ctx, `PRAGMA journal_mode = WAL;
CREATE TABLE pets (id INTEGER PRIMARY KEY, name TEXT NOT NULL, categoryId INTEGER NOT NULL, status TEXT NOT NULL);
CREATE INDEX pets_status ON pets (status);`))
	must1(db.ExecContext(b.ctx, "ATTACH ? AS own", d.path))
	must1(db.ExecContext(b.ctx, `INSERT INTO main.pets (id, name, categoryId, status)
	SELECT id, name, category_id, CASE status WHEN 2 THEN 'available' WHEN 3 THEN 'pending' ELSE 'sold' END FROM own.pets`))
	must1(db.ExecContext(b.ctx, "DETACH own; PRAGMA wal_checkpoint(TRUNCATE)"))
	return path
}

// startPeer starts a server of a system and waits until it responds to a request. db is its database.
func (b *bench) startPeer(s *server, request string, env []string, args ...string) {
	s.process = must1(b.spawn("", env, nil, append(slices.Clone(b.pinned), args...)...))
	for start := time.Now(); time.Since(start) < 30*time.Second; b.sleep(50 * time.Millisecond) {
		if a, err := s.exchange(request); err == nil && a.Status < 500 {
			return
		}
	}
	fail("%v is not ready:\n%s", args, s.output())
}

// pair starts a system of e2e/peers twice: with a SQLite that syncs each commit, for new pets only, and with one
// that does not, for new pets and all else.
func (b *bench) pair(name, setup, plain string, args func(port string) []string) *peer {
	p := &peer{name: name, setup: setup, pets: petsOf, added: map[*server]float64{}, size: map[string]float64{}}
	for _, synchronous := range []string{"NORMAL", "FULL"} {
		s := &server{address: freeAddress(), key: makeToken("peer", 0), db: b.copy(&database{path: plain})}
		_, port, _ := strings.Cut(s.address, ":")
		env := []string{"DB=" + s.db, "KEY=" + s.key, "PORT=" + port, "SYNCHRONOUS=" + synchronous, "NODE_ENV=production"}
		b.startPeer(s, s.request("GET", listHot), env, args(port)...)
		if synchronous == "FULL" {
			p.servers[opSynced] = s
			continue
		}
		p.servers = everywhere(s, opList, opFiltered, opHundred, opGet, opUnsynced)
		p.lua, p.sample = theSame(s)
	}
	return p
}

func (b *bench) fastify(plain string) *peer {
	folder := filepath.Join("peers", "fastify")
	var pinned struct{ Dependencies map[string]string }
	must(json.Unmarshal(must1(os.ReadFile(filepath.Join(folder, "package.json"))), &pinned))
	setup := fmt.Sprintf("Fastify %s, better-sqlite3 %s, Node.js %s; @fastify/bearer-auth checks the key, @fastify/rate-limit counts it; "+
		"schemas, prepared statements, one process for the one core; a write-ahead log with synchronous=NORMAL, better-sqlite3's default, "+
		"which does not sync a commit, or FULL, which syncs each.",
		pinned.Dependencies["fastify"], pinned.Dependencies["better-sqlite3"], b.command("node", "--version"))
	return b.pair("Fastify, better-sqlite3", setup, plain, func(string) []string {
		return []string{"node", filepath.Join(folder, "server.js")}
	})
}

// debianPython is the one that Debian's packages are for, whatever comes first on the PATH.
const debianPython = "/usr/bin/python3"

func (b *bench) fastapi(plain string) *peer {
	versions := b.command(debianPython, "-c", "from importlib.metadata import version as v; import platform; "+
		"print(f'FastAPI {v(\"fastapi\")}, pydantic {v(\"pydantic\")}, uvicorn {v(\"uvicorn\")}, Python {platform.python_version()}')")
	setup := versions + " (Debian's packages); HTTPBearer and compare_digest check the key, a counter in a dict counts it; " +
		"uvloop, httptools, responses by ujson, no log of requests, one process for the one core; a write-ahead log with " +
		"synchronous=NORMAL, which does not sync a commit, or FULL, Python's default, which syncs each."
	return b.pair("FastAPI, sqlite3", setup, plain, func(port string) []string {
		return []string{debianPython, "-m", "uvicorn", "--app-dir", filepath.Join("peers", "fastapi"), "--port", port, "--workers", "1",
			"--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning", "server:app"}
	})
}

// startPocketBase makes a collection of pets that its users may read and add to.
func (b *bench) startPocketBase(plain string) *peer {
	folder := filepath.Join(must1(os.MkdirTemp(b.work, "pocketbase-")), "data") // beside it, migrations are written
	s := &server{address: freeAddress(), db: filepath.Join(folder, "data.db")}
	b.command(b.pocketbase, "superuser", "upsert", "bench@example.com", peerPassword, "--dir", folder)
	b.startPeer(s, "GET /api/health HTTP/1.1\r\nHost: bench\r\n\r\n", nil, b.pocketbase, "serve", "--http", s.address, "--dir", folder)
	b.fillPocketBase(s, plain)

	// Without the total, as its documentation advises; choosing fields makes it slower.
	const records, filter = "/api/collections/pets/records", "&filter=status%3D%22sold%22"
	const list, hundred = records + "?perPage=20&skipTotal=1", records + "?perPage=100&skipTotal=1"
	p := &peer{name: "PocketBase", pets: pocketBasePets, added: map[*server]float64{}, size: map[string]float64{}}
	p.setup = "PocketBase " + b.moduleOf(b.pocketbase, "github.com/pocketbase/pocketbase") + "; a user's token, of which it " +
		"checks the signature and reads the user, stands for a key; its limiter counts the address; skipTotal, no log of " +
		"requests; a write-ahead log with synchronous=NORMAL, its own choice, which does not sync a commit."
	p.servers = everywhere(s, opList, opFiltered, opHundred, opGet, opUnsynced)
	p.lua = map[string]string{
		opList: hot(list), opFiltered: hot(list + filter), opHundred: hot(hundred),
		opGet:      each(fmt.Sprintf(`get(string.format("%s/%%015d", random(1, %d)))`, records, fetched)),
		opUnsynced: fmt.Sprintf("create = create:gsub(%q, %q, 1)\n", "POST /v1/pets", "POST "+records) + each(create),
	}
	p.sample = map[string]string{
		opList: s.request("GET", list), opFiltered: s.request("GET", list+filter), opHundred: s.request("GET", hundred),
		opGet: s.request("GET", records+"/000000000000005"), opUnsynced: s.request("POST", records),
	}
	return p
}

// fillPocketBase sets it up over its API, but for the pets. The key is the token of a user: that of a superuser, which
// its documentation calls the nearest to an API key, would skip the rules and the limits.
func (b *bench) fillPocketBase(s *server, plain string) {
	type object map[string]any
	var super, user, token struct{ ID, Token string }
	b.call(s, "POST", "/api/collections/_superusers/auth-with-password",
		object{"identity": "bench@example.com", "password": peerPassword}, &super)
	s.key = super.Token
	b.call(s, "PATCH", "/api/settings", object{
		"logs":       object{"maxDays": 0},
		"rateLimits": object{"enabled": true, "rules": []object{{"label": "/api/", "maxRequests": 1_000_000_000, "duration": 60}}},
	}, nil)
	const signedIn = `@request.auth.id != ""`
	b.call(s, "POST", "/api/collections", object{
		"name": "pets", "type": "base", "listRule": signedIn, "viewRule": signedIn, "createRule": signedIn,
		"fields": []object{
			{"name": "name", "type": "text", "required": true, "min": 1, "max": 200},
			{"name": "categoryId", "type": "number", "required": true, "onlyInt": true},
			{"name": "status", "type": "select", "required": true, "maxSelect": 1, "values": []string{"available", "pending", "sold"}},
		},
		"indexes": []string{"CREATE INDEX pets_status ON pets (status)"},
	}, nil)
	b.call(s, "POST", "/api/collections/users/records",
		object{"email": "user@example.com", "password": peerPassword, "passwordConfirm": peerPassword}, &user)
	b.call(s, "POST", "/api/collections/users/impersonate/"+user.ID, object{"duration": 86400}, &token)
	s.key = token.Token
	db := open(s.db)
	defer db.Close()
	must1(db.ExecContext(b.ctx, "PRAGMA busy_timeout = 10000"))
	must1(db.ExecContext(b.ctx, "ATTACH ? AS plain", plain))
	must1(db.ExecContext(b.ctx, `INSERT INTO main.pets (id, name, categoryId, status)
	SELECT format('%015d', id), name, categoryId, status FROM plain.pets ORDER BY id`))
}

// pocketBasePets reads a page of records, or one record. Ids are texts: those of the pets that were there hold a number.
func pocketBasePets(body []byte) ([]pet, error) {
	type record struct {
		pet
		ID string `json:"id"`
	}
	var page struct{ Items []record }
	if err := json.Unmarshal(body, &page); err != nil {
		return nil, err
	}
	if page.Items == nil {
		page.Items = make([]record, 1)
		if err := json.Unmarshal(body, &page.Items[0]); err != nil {
			return nil, err
		}
	}
	var pets []pet
	for _, r := range page.Items {
		r.pet.ID, _ = strconv.ParseInt(r.ID, 10, 64) // a new one's is random
		pets = append(pets, r.pet)
	}
	return pets, nil
}

// rqlite is one node, asked as a program would that uses it as its database: with parameters, never with a text that
// was put together.
func (b *bench) rqlite(plain string) *peer {
	folder := must1(os.MkdirTemp(b.work, "rqlite-"))
	users, data := filepath.Join(folder, "users.json"), filepath.Join(folder, "data")
	must(os.WriteFile(users, fmt.Appendf(nil, `[{"username": "bench", "password": %q, "perms": ["all"]}]`, peerPassword), 0o600))
	s := &server{address: freeAddress(), db: filepath.Join(data, "db.sqlite")}
	s.key = base64.StdEncoding.EncodeToString([]byte("bench:" + peerPassword))
	post := func(path, body string) string {
		return "POST " + path + " HTTP/1.1\r\nHost: " + s.address + "\r\nAuthorization: Basic " + s.key +
			"\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body
	}
	query := func(where, more string) string {
		return `[["SELECT id, name, categoryId, status FROM pets ` + where + `", ` + more + `]]`
	}
	const (
		read   = "/db/query?level=none&associative"
		write  = "/db/execute"
		queued = "/db/execute?queue"
		insert = `[["INSERT INTO pets (name, categoryId, status) VALUES (?, ?, ?)", "Rex", 7, "available"]]`
	)
	b.startPeer(s, "GET /readyz HTTP/1.1\r\nHost: bench\r\nAuthorization: Basic "+s.key+"\r\n\r\n", nil,
		"rqlited", "-node-id", "1", "-http-addr", s.address, "-raft-addr", freeAddress(), "-auth", users, data)
	b.loadRqlite(s, plain)
	p := &peer{name: "rqlite", pets: rqlitePets, added: map[*server]float64{}, size: map[string]float64{}}
	p.setup = "rqlite " + b.moduleOf(must1(exec.LookPath("rqlited")), "github.com/rqlite/rqlite/v8") + ", one node; basic " +
		"authentication, as it has no other, and no limit, as it has none; parameters, level=none, rows as objects; the log of " +
		"Raft is synced for many requests at once; not synced are its queued writes (queue)."
	p.servers = everywhere(s, operations...)
	p.sample = map[string]string{
		opList: post(read, query("ORDER BY id LIMIT ?", "20")), opFiltered: post(read, query("WHERE status = ? ORDER BY id LIMIT ?", `"sold", 20`)),
		opHundred: post(read, query("ORDER BY id LIMIT ?", "100")), opGet: post(read, query("WHERE id = ?", "5")),
		opSynced: post(write, insert), opUnsynced: post(queued, insert),
	}
	p.lua = map[string]string{}
	for operation, request := range p.sample {
		p.lua[operation] = fmt.Sprintf("local fixed = %q\n", request) + each("fixed")
	}
	before, after, _ := strings.Cut(query("WHERE id = ?", "SPLIT"), "SPLIT")
	p.lua[opGet] = fmt.Sprintf(`local start = "POST %s" .. head:gsub("Bearer", "Basic") .. "Content-Type: application/json\r\nContent-Length: "
function request()
  local body = %q .. random(1, %d) .. %q
  return start .. #body .. "\r\n\r\n" .. body
end`, read, before, fetched, after)
	return p
}

// rqlitePets reads the rows of a query. A write returns no pet but a count, or the number of its place in the queue.
func rqlitePets(body []byte) ([]pet, error) {
	var response struct {
		Results []struct {
			Rows     []pet
			Affected int `json:"rows_affected"`
		}
		Place int64 `json:"sequence_number"`
	}
	if err := json.Unmarshal(body, &response); err != nil {
		return nil, err
	}
	if response.Place > 0 || len(response.Results) == 1 && response.Results[0].Affected == 1 {
		return []pet{added}, nil
	}
	if len(response.Results) != 1 {
		return nil, nil
	}
	return response.Results[0].Rows, nil
}

// loadRqlite gives a node a SQLite file as its database.
func (b *bench) loadRqlite(s *server, file string) {
	request := must1(http.NewRequestWithContext(b.ctx, "POST", "http://"+s.address+"/db/load", bytes.NewReader(must1(os.ReadFile(file)))))
	request.Header.Set("Authorization", "Basic "+s.key)
	request.Header.Set("Content-Type", "application/octet-stream")
	do(request)
}

// call sends JSON to a server and reads JSON from it.
func (b *bench) call(s *server, method, path string, body, into any) {
	request := must1(http.NewRequestWithContext(b.ctx, method, "http://"+s.address+path, bytes.NewReader(must1(json.Marshal(body)))))
	request.Header.Set("Authorization", "Bearer "+s.key)
	request.Header.Set("Content-Type", "application/json")
	if body := do(request); into != nil {
		must(json.Unmarshal(body, into))
	}
}
