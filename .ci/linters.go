package lintersdb

// These are the linters that .golangci.yml enables. .ci/run builds golangci-lint with this file in
// place of its list of all linters (pkg/lint/lintersdb/builder_linter.go).

import (
	"github.com/golangci/golangci-lint/v2/pkg/config"
	"github.com/golangci/golangci-lint/v2/pkg/golinters/bodyclose"
	"github.com/golangci/golangci-lint/v2/pkg/golinters/contextcheck"
	"github.com/golangci/golangci-lint/v2/pkg/golinters/errcheck"
	"github.com/golangci/golangci-lint/v2/pkg/golinters/errorlint"
	"github.com/golangci/golangci-lint/v2/pkg/golinters/gosec"
	"github.com/golangci/golangci-lint/v2/pkg/golinters/govet"
	"github.com/golangci/golangci-lint/v2/pkg/golinters/ineffassign"
	"github.com/golangci/golangci-lint/v2/pkg/golinters/nilerr"
	"github.com/golangci/golangci-lint/v2/pkg/golinters/noctx"
	"github.com/golangci/golangci-lint/v2/pkg/golinters/staticcheck"
	"github.com/golangci/golangci-lint/v2/pkg/golinters/unparam"
	"github.com/golangci/golangci-lint/v2/pkg/golinters/unused"
	"github.com/golangci/golangci-lint/v2/pkg/lint/linter"
)

// LinterBuilder is what golangci-lint asks for its linters.
type LinterBuilder struct{}

// NewLinterBuilder returns one.
func NewLinterBuilder() *LinterBuilder { return &LinterBuilder{} }

// Build returns the linters.
func (LinterBuilder) Build(cfg *config.Config) ([]*linter.Config, error) {
	if cfg == nil {
		return nil, nil
	}
	set := &cfg.Linters.Settings
	return []*linter.Config{
		linter.NewConfig(bodyclose.New(&set.BodyClose)).WithLoadForGoAnalysis(),
		linter.NewConfig(contextcheck.New()).WithLoadForGoAnalysis(),
		linter.NewConfig(errcheck.New(&set.Errcheck)).WithLoadForGoAnalysis(),
		linter.NewConfig(errorlint.New(&set.ErrorLint)).WithLoadForGoAnalysis(),
		linter.NewConfig(gosec.New(&set.Gosec)).WithLoadForGoAnalysis(),
		linter.NewConfig(govet.New(&set.Govet)).WithLoadForGoAnalysis(),
		linter.NewConfig(ineffassign.New(&set.Ineffassign)),
		linter.NewConfig(nilerr.New()).WithLoadForGoAnalysis(),
		linter.NewConfig(noctx.New()).WithLoadForGoAnalysis(),
		linter.NewConfig(staticcheck.New(&set.Staticcheck)).WithLoadForGoAnalysis(),
		linter.NewConfig(unparam.New(&set.Unparam)).WithLoadForGoAnalysis(),
		linter.NewConfig(unused.New(&set.Unused)).WithLoadForGoAnalysis().WithChangeTypes(),
	}, nil
}
