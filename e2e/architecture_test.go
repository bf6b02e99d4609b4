// Package e2e tests the built application from outside: whole flows, crashes, outages.
package e2e

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "example.com/ordertimeout/"

// Imports run one way: services to infra to domain. Services never import each other,
// and neither do adapters; what only helps tests may import its adapter.
func TestImportDirections(t *testing.T) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = ".."
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	packages := 0
	for dec := json.NewDecoder(out); ; packages++ {
		var p struct {
			ImportPath   string   `json:"ImportPath"`
			Imports      []string `json:"Imports"`
			TestImports  []string `json:"TestImports"`
			XTestImports []string `json:"XTestImports"`
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		from := strings.TrimPrefix(p.ImportPath, module)
		if name := path.Base(from); slices.Contains([]string{"util", "utils", "common", "helper", "helpers", "shared"}, name) {
			t.Errorf("%s: a package is named for what it holds, not %q", from, name)
		}
		for _, to := range p.Imports {
			if why := forbidden(from, to); why != "" {
				t.Errorf("%s imports %s: %s", from, to, why)
			}
		}
		for _, to := range slices.Concat(p.TestImports, p.XTestImports) {
			if strings.HasPrefix(to, module+"e2e") && !strings.HasPrefix(from, "e2e") {
				t.Errorf("tests of %s import %s: end-to-end code stays outside", from, to)
			}
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if packages < 10 {
		t.Fatalf("go list named %d packages only", packages)
	}
}

// forbidden returns why one package must not import another, or "".
func forbidden(from, to string) string {
	to, own := strings.CutPrefix(to, module)
	fromLayer, fromPart := split(from)
	if !own {
		if fromLayer == "domain" && strings.Contains(strings.Split(to, "/")[0], ".") {
			return "the domain knows the standard library only"
		}
		return ""
	}
	if strings.HasPrefix(from, "e2e") {
		return ""
	}
	layers := []string{"services", "infra", "migrations", "domain"}
	toLayer, toPart := split(to)
	switch f, t := slices.Index(layers, fromLayer), slices.Index(layers, toLayer); {
	case t < 0:
		return "end-to-end code stays outside"
	case t < f || from == "domain":
		return "imports run from services to infra to domain"
	case fromLayer == "services" && toLayer == "services" && fromPart != "" && fromPart != toPart:
		return "services never import each other"
	case fromLayer == "infra" && toLayer == "infra" && fromPart != toPart:
		return "adapters never import each other"
	}
	return ""
}

// split takes "infra/postgres/postgrestest" apart into "infra" and "postgres".
func split(pkg string) (layer, part string) {
	parts := strings.Split(pkg, "/")
	if len(parts) == 1 {
		return parts[0], ""
	}
	return parts[0], parts[1]
}

func TestForbiddenImportsAreSeen(t *testing.T) {
	t.Parallel()
	for _, pair := range [][2]string{
		{"domain", "github.com/google/uuid"}, {"domain/money", "golang.org/x/text/currency"}, {"domain", module + "infra/postgres"},
		{"infra/postgres", module + "services/order"}, {"infra/postgres", module + "infra/rabbitmq"},
		{"services/order", module + "services/relay"}, {"services/order", module + "e2e/servers"},
	} {
		if forbidden(pair[0], pair[1]) == "" {
			t.Errorf("%s may import %s", pair[0], pair[1])
		}
	}
	for _, pair := range [][2]string{
		{"domain", "time"}, {"services", module + "services/order"}, {"infra/postgres", module + "migrations"},
		{"infra/postgres/postgrestest", module + "infra/postgres"}, {"services/order", module + "domain"},
		{"services/reconciler/console", module + "services/reconciler"},
	} {
		if why := forbidden(pair[0], pair[1]); why != "" {
			t.Errorf("%s may not import %s: %s", pair[0], pair[1], why)
		}
	}
}
