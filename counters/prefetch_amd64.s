#include "textflag.h"

// func prefetch(s *shard, group uintptr)
TEXT ·prefetch(SB), NOSPLIT, $0-16
	MOVQ s+0(FP), BX
	MOVQ group+8(FP), AX
	PREFETCHT0 (BX)
	PREFETCHT0 (AX)
	PREFETCHT0 64(AX)
	PREFETCHT0 128(AX)
	PREFETCHT0 192(AX)
	PREFETCHT0 256(AX)
	PREFETCHT0 320(AX)
	RET
