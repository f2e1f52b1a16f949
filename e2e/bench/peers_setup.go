//go:build linux

package main

// How each system that the service is compared with is built, filled, and started: as its own
// documentation advises for speed. Where that leaves a choice, the faster way is taken. None of
// them may log requests, as the service does not. Their versions are pinned in e2e/peers, but for
// FastAPI: it and Python are Debian's (apt install python3-fastapi uvicorn python3-uvloop
// python3-httptools python3-ujson). Node.js with npm, a C compiler, and rqlited have to be on the
// PATH.

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// peerPassword is that of everybody who needs one.
const peerPassword = "bench-password"

// startPeers starts all of them with the same pets, the service first.
func (b *bench) startPeers() []*peer {
	d := b.database(peerPets, 0)
	plain := b.plainDatabase(d)
	defer remove(plain)
	s := b.fresh(d)
	service := &peer{name: ourName, petsOf: petsOf}
	service.calls = readCalls(s)
	service.calls[opSynced] = addCall(s)
	service.calls[opUnsynced] = service.calls[opSynced] // to be compared; it has no other
	return []*peer{
		service,
		b.ceilingPeer(service),
		b.fastify(plain),
		b.fastapi(plain),
		b.pocketBase(plain),
		b.rqlite(plain),
	}
}

// ceilingPeer has a process for each list, since it sends what the service has sent for that one.
func (b *bench) ceilingPeer(service *peer) *peer {
	own := service.calls[opList].server
	one := service.calls[opFetch].sample()
	p := &peer{name: ceilingName, petsOf: petsOf, calls: map[string]*call{}}
	for operation, c := range service.calls {
		page := service.calls[opList].request
		if operation == opFiltered || operation == opHundred {
			page = c.request
		}
		p.calls[operation] = &call{server: b.startCeiling(own, page, one), request: c.request}
	}
	return p
}

// plainDatabase has the pets in a table as one would write it, for those that read SQLite
// themselves.
func (b *bench) plainDatabase(d *database) string {
	path := filepath.Join(b.work, "plain.db")
	db := open(path)
	run(db, "PRAGMA journal_mode = WAL")
	run(db, `CREATE TABLE pets (id INTEGER PRIMARY KEY, name TEXT NOT NULL,
		categoryId INTEGER NOT NULL, status TEXT NOT NULL)`)
	run(db, "CREATE INDEX pets_status ON pets (status)")
	run(db, "ATTACH ? AS own", d.path)
	run(db, `INSERT INTO main.pets (id, name, categoryId, status)
		SELECT id, name, category_id,
			CASE status WHEN 2 THEN 'available' WHEN 3 THEN 'pending' ELSE 'sold' END
		FROM own.pets`)
	run(db, "DETACH own")
	must(db.Close())
	return path
}

// pair starts a system of e2e/peers twice: with a SQLite that syncs each commit, for new pets only,
// and with one that does not, for new pets and all else.
func (b *bench) pair(name, plain string, args func(port string) []string) *peer {
	start := func(synchronous string) *server {
		key := makeKey("peer", 0)
		s := &server{
			address: freeAddress(),
			auth:    "Bearer " + key,
			db:      b.copy(plain),
		}
		_, port, err := net.SplitHostPort(s.address)
		must(err)
		env := []string{
			"DB=" + s.db,
			"KEY=" + key,
			"PORT=" + port,
			"SYNCHRONOUS=" + synchronous,
			"NODE_ENV=production",
			"PYTHONDONTWRITEBYTECODE=1",
		}
		s.start(b, env, slices.Concat(serverCore, args(port))...)
		s.await(s.get(list))
		return s
	}
	p := &peer{name: name, petsOf: petsOf}
	normal := start("NORMAL")
	p.calls = readCalls(normal)
	p.calls[opUnsynced] = addCall(normal)
	p.calls[opSynced] = addCall(start("FULL"))
	return p
}

func (b *bench) fastify(plain string) *peer {
	const install = "cd peers/fastify && [ -d node_modules/better-sqlite3/build ] || npm ci"
	command("sh", "-c", install)
	return b.pair(fastifyName, plain, func(string) []string {
		return []string{"node", "peers/fastify/server.js"}
	})
}

func (b *bench) fastapi(plain string) *peer {
	const debianPython = "/usr/bin/python3" // whatever comes first on the PATH
	return b.pair("FastAPI, sqlite3", plain, func(port string) []string {
		return []string{debianPython, "-m", "uvicorn", "--app-dir", "peers/fastapi", "--port", port,
			"--workers", "1", "--loop", "uvloop", "--http", "httptools", "--no-access-log",
			"--log-level", "warning", "server:app"}
	})
}

// pocketBase has a collection of pets that its users may read and add to.
func (b *bench) pocketBase(plain string) *peer {
	program := filepath.Join(b.work, "pocketbase")
	goBuild("peers/pocketbase", program, "github.com/pocketbase/pocketbase/examples/base")
	above := must1(os.MkdirTemp(b.work, "pocketbase-"))
	folder := filepath.Join(above, "data") // beside it, migrations are written
	s := &server{address: freeAddress(), db: filepath.Join(folder, "data.db")}
	command(program, "superuser", "upsert", "bench@example.com", peerPassword, "--dir", folder)
	serve := []string{program, "serve", "--http", s.address, "--dir", folder}
	s.start(b, nil, slices.Concat(serverCore, serve)...)
	s.await(s.get("/api/health"))
	s.setUpPocketBase()
	fillPocketBase(s.db, plain)

	// Without the total, as its documentation advises; choosing fields makes it slower.
	const records = "/api/collections/pets/records"
	page := s.get(records + "?perPage=20&skipTotal=1")
	filtered := s.get(records + "?perPage=20&skipTotal=1&filter=status%3D%22sold%22")
	hundred := s.get(records + "?perPage=100&skipTotal=1")
	fetch := s.get(records + "/00000000000{id}")
	add := s.send("POST", records, newPet)
	return &peer{name: "PocketBase", petsOf: pocketBasePets, calls: map[string]*call{
		opList:     {server: s, request: page},
		opFiltered: {server: s, request: filtered},
		opHundred:  {server: s, request: hundred},
		opFetch:    {server: s, request: fetch},
		opUnsynced: {server: s, request: add},
	}}
}

// setUpPocketBase sets it up over its API. The key is the token of a user: that of a superuser,
// which its documentation calls the nearest to an API key, would skip the rules and the limits.
func (s *server) setUpPocketBase() {
	type made struct{ ID, Token string }
	post := func(method, path, body string) (values made) {
		a := s.ask(s.send(method, "/api/"+path, body))
		must(json.Unmarshal(a.Body, &values))
		return values
	}
	super := post("POST", "collections/_superusers/auth-with-password",
		`{"identity": "bench@example.com", "password": "`+peerPassword+`"}`)
	s.auth = "Bearer " + super.Token
	post("PATCH", "settings", `{"logs": {"maxDays": 0}, "rateLimits": {"enabled": true,
		"rules": [{"label": "/api/", "maxRequests": 1000000000, "duration": 60}]}}`)
	post("POST", "collections", `{"name": "pets", "type": "base",
		"listRule": "@request.auth.id != ''",
		"viewRule": "@request.auth.id != ''",
		"createRule": "@request.auth.id != ''",
		"fields": [
			{"name": "name", "type": "text", "required": true, "min": 1, "max": 200},
			{"name": "categoryId", "type": "number", "required": true, "onlyInt": true},
			{"name": "status", "type": "select", "required": true, "maxSelect": 1,
				"values": ["available", "pending", "sold"]}],
		"indexes": ["CREATE INDEX pets_status ON pets (status)"]}`)
	user := post("POST", "collections/users/records", fmt.Sprintf(
		`{"email": "user@example.com", "password": %[1]q, "passwordConfirm": %[1]q}`, peerPassword))
	token := post("POST", "collections/users/impersonate/"+user.ID, `{"duration": 86400}`)
	s.auth = "Bearer " + token.Token
}

func fillPocketBase(path, plain string) {
	db := open(path)
	defer db.Close()
	run(db, "PRAGMA busy_timeout = 10000")
	run(db, "ATTACH ? AS plain", plain)
	run(db, `INSERT INTO main.pets (id, name, categoryId, status)
		SELECT format('%015d', id), name, categoryId, status FROM plain.pets ORDER BY id`)
}

// pocketBasePets reads a page of records, or one record. Ids are texts: those of the pets that were
// there hold a number.
func pocketBasePets(body []byte) (pets []pet, err error) {
	type record struct {
		pet
		ID string `json:"id"`
	}
	var page struct {
		Items []record
		record
	}
	if err := json.Unmarshal(body, &page); err != nil {
		return nil, err
	}
	if page.Items == nil {
		page.Items = []record{page.record}
	}
	for _, r := range page.Items {
		r.pet.ID, _ = strconv.ParseInt(r.ID, 10, 64) // a new one's is random
		pets = append(pets, r.pet)
	}
	return pets, nil
}

// rqlite is one node, asked as a program would that uses it as its database: with parameters, never
// with a text that was put together.
func (b *bench) rqlite(plain string) *peer {
	folder := must1(os.MkdirTemp(b.work, "rqlite-"))
	users := filepath.Join(folder, "users.json")
	data := filepath.Join(folder, "data")
	const rights = `[{"username": "bench", "password": %q, "perms": ["all"]}]`
	must(os.WriteFile(users, fmt.Appendf(nil, rights, peerPassword), 0o600))
	login := base64.StdEncoding.EncodeToString([]byte("bench:" + peerPassword))
	s := &server{
		address: freeAddress(),
		auth:    "Basic " + login,
		db:      filepath.Join(data, "db.sqlite"),
	}
	args := []string{"rqlited", "-node-id", "1", "-http-addr", s.address,
		"-raft-addr", freeAddress(), "-auth", users, data}
	s.start(b, nil, slices.Concat(serverCore, args)...)
	s.await(s.get("/readyz"))
	s.ask(s.send("POST", "/db/load", string(must1(os.ReadFile(plain)))))

	query := func(where, parameters string) *call {
		const body = `[["SELECT id, name, categoryId, status FROM pets %s", %s]]`
		text := fmt.Sprintf(body, where, parameters)
		return &call{server: s, request: s.send("POST", "/db/query?level=none&associative", text)}
	}
	write := func(path string) *call {
		const body = `[["INSERT INTO pets (name, categoryId, status) VALUES (?, ?, ?)",
			"Rex", 7, "available"]]`
		return &call{server: s, request: s.send("POST", path, body)}
	}
	return &peer{name: "rqlite", petsOf: rqlitePets, calls: map[string]*call{
		opList:     query("ORDER BY id LIMIT ?", "20"),
		opFiltered: query("WHERE status = ? ORDER BY id LIMIT ?", `"sold", 20`),
		opHundred:  query("ORDER BY id LIMIT ?", "100"),
		opFetch:    query("WHERE id = ?", "{id}"),
		opSynced:   write("/db/execute"),
		opUnsynced: write("/db/execute?queue"),
	}}
}

// rqlitePets reads the rows of a query. A write returns no pet but a count, or the number of its
// place in the queue.
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
	if response.Place > 0 {
		return []pet{addedPet}, nil
	}
	if len(response.Results) != 1 {
		return nil, nil
	}
	result := response.Results[0]
	if result.Affected == 1 {
		return []pet{addedPet}, nil
	}
	return result.Rows, nil
}
