package sim
import ("testing";"fmt";"os";"math";"github.com/tcpilot/tcpilot/internal/learn")
func TestProbe(t *testing.T){
 if os.Getenv("PROBE")=="" {t.Skip()}
 for _,sd:=range []float64{.3,.4,.5} {
  bad,wrong,false_:=0,0,0; N:=6000
  for seed:=range N { r:=Run(factor3(seed%3,sd),learn.DefaultThompson(),seeded(seed+100000))
    if r.BestShareLast20<0.9 {bad++; if r.Changes>0 {false_++}}; if r.BestShareLast20<.5{wrong++} }
  p:=float64(bad)/float64(N)
  fmt.Printf("sd %.1f missed %.4f +- %.4f (with false alarm %d of %d) wrong arm %.4f\n",sd,p,math.Sqrt(p*(1-p)/float64(N)),false_,bad,float64(wrong)/float64(N))
 }}
