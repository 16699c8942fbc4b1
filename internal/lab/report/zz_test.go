package report
import ("testing";"bytes";"os")
func TestPageX(t *testing.T){
 var b bytes.Buffer
 writeSynthetic(t, &b, 20)
 r,err:=Read(&b); must(t,err)
 f,_:=os.Create("/tmp/y.html"); must(t,HTML(f,r,r)); f.Close()
}
