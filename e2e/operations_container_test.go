package e2e

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// container is what docs/deploy/Dockerfile describes: a root directory, and how the program runs in
// it.
type container struct {
	root    string
	program string
	env     []string
	user    *syscall.Credential
}

// buildContainer does what Docker would with the Dockerfile. Only root can.
func buildContainer(t *testing.T) *container {
	t.Helper()
	content, err := os.ReadFile("../docs/deploy/Dockerfile")
	noError(t, err)
	build := t.TempDir()
	authorities := filepath.Join(build, "etc/ssl/certs") // of the image of the first stage
	noError(t, os.MkdirAll(authorities, 0o755))
	noError(t, os.WriteFile(filepath.Join(authorities, "ca-certificates.crt"), nil, 0o644))
	i := &container{root: t.TempDir(), user: &syscall.Credential{}}
	for line := range strings.Lines(string(content)) {
		instruction, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		words := strings.Fields(rest)
		switch instruction {
		case "", "#", "FROM", "WORKDIR", "VOLUME", "EXPOSE":
		case "COPY":
			if rest != ". ." { // the first stage works in the repository itself
				i.copy(t, build, words)
			}
		case "RUN":
			run := exec.Command("sh", "-c", strings.ReplaceAll(rest, " /", " "+build+"/"))
			run.Dir = ".."
			out, err := run.CombinedOutput()
			if err != nil {
				t.Fatalf("%s: %v\n%s", rest, err, out)
			}
		case "USER":
			_, err := fmt.Sscanf(rest, "%d:%d", &i.user.Uid, &i.user.Gid)
			noError(t, err)
		case "ENV":
			i.env = append(i.env, words...)
		case "ENTRYPOINT":
			i.program = decode[[]string](t, rest)[0]
		default:
			t.Fatalf("the Dockerfile has an instruction that is not understood: %s", line)
		}
	}
	return i
}

// copy takes a file or a folder over from the first stage.
func (i *container) copy(t *testing.T, build string, words []string) {
	t.Helper()
	from, to := build+words[len(words)-2], i.root+words[len(words)-1]
	if strings.HasSuffix(to, "/") {
		noError(t, os.MkdirAll(to, 0o755))
	}
	tool(t, "cp", "-r", from, to)
	for _, word := range words {
		if owner, ok := strings.CutPrefix(word, "--chown="); ok {
			tool(t, "chown", "-R", owner, to)
		}
	}
}

// command is the program of the image in a container.
func (i *container) command(args ...string) *exec.Cmd {
	cmd := exec.Command(i.program, args...)
	cmd.Dir, cmd.Env = "/", i.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: i.root, Credential: i.user}
	return cmd
}

// TestTheCommandsWorkInTheContainer: an import, a restore into a cluster, and what SQLite sorts
// need a folder for temporary files, and the image has no folder but the one of its data.
func TestTheCommandsWorkInTheContainer(t *testing.T) {
	t.Parallel()
	i, c := buildContainer(t), startCluster(t)
	data := filepath.Join(i.root, "data")
	pets := `{"id":1,"name":"Rex","categoryId":7,"status":"sold"}` + "\n"
	noError(t, os.WriteFile(filepath.Join(data, "pets.jsonl"), []byte(pets), 0o644))
	works := func(args ...string) (stdout string) {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			stdout = succeeds(t, i.command(args...)).out.String()
		})
		return stdout
	}
	works("key", "create")
	works("pet", "import", "/data/pets.jsonl")
	works("backup", "/data/copy.db")
	works("restore", "/data/copy.db")
	works("pet", "export", "/data/export.jsonl")
	works("restore", "-db", c.addresses(), "/data/copy.db")
	works("pet", "import", "-db", c.addresses(), "-again", "/data/pets.jsonl")
	if got := works("pet", "export", "-db", c.addresses()); strings.Count(got, "Rex") != 2 {
		t.Errorf("the cluster should hold the pet of the copy and that of the import: %q", got)
	}

	database(t, filepath.Join(data, "petstore.db"), `WITH RECURSIVE n (i) AS
			(SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 50000)
		INSERT INTO api_keys (digest, last_four, test, name, plan, per_minute, per_day, created_at,
				lifetime, expires_at, unbanned_at)
			SELECT randomblob(32), 'last', 0, 'key', 'free', 0, 0, 0, 0, 0, 0 FROM n`).Close()
	if lines := strings.Count(works("key", "usage"), "\n"); lines != 50002 {
		t.Errorf("the usage of 50,001 keys has %d lines", lines)
	}
	nowhere := i.command("key", "usage")
	nowhere.Env = append(nowhere.Env, "TMPDIR=/nowhere")
	fails(t, nowhere, "(6410)") // SQLITE_IOERR_GETTEMPPATH, so the report needs a temporary file

	if left := files(t, data); len(left) != 6 { // with the lock and an .old
		t.Errorf("of the commands' own files some are left: %v", slices.Collect(maps.Keys(left)))
	}
}
