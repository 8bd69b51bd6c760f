"""Every word of the report, in English and in Chinese, in one table.

    word("samples.exact", right=9, shown=10)   # ("9 of 10 …", "…")
    spans(word("nav.curves"))                  # HTML that shows one of the two

A text may hold simple HTML; the values put into it are escaped. The page shows the language that
`<html lang>` names, so switching needs no second copy of anything.
"""

from __future__ import annotations

import re
from html import escape

from allformer.explain.picture_words import PICTURE_WORDS
from allformer.explain.run_words import OBJECTIVE_WORDS, Pair
from allformer.explain.sound_words import SOUND_WORDS
from allformer.explain.tune_words import TUNE_WORDS

__all__ = [
    "WORDS",
    "Pair",
    "counted",
    "joined",
    "label",
    "said",
    "script_words",
    "sentences",
    "spans",
    "word",
]

WORDS: dict[str, Pair] = {
    **OBJECTIVE_WORDS,
    **PICTURE_WORDS,
    **SOUND_WORDS,
    **TUNE_WORDS,
    # --- page ---
    "page.kind": ("Training report", "训练报告"),
    "page.title": ("An encoder–decoder Transformer", "编码器–解码器 Transformer"),
    "page.language": ("Language", "语言"),
    "page.sections": ("Sections", "目录"),
    "page.skip": ("Skip to the content", "跳到正文"),
    "page.foot": (
        "One file, no network: it can be mailed, archived and printed as it is.",
        "单个文件，无需联网，可直接发送、存档或打印。",
    ),
    "page.noscript": (
        "JavaScript is off: the pictures stand still and the text is in English.",
        "未启用 JavaScript：图片为静态，文字为英文。",
    ),
    "nav.samples": ("Translations", "译文"),
    "nav.curves": ("Training", "训练"),
    "nav.attention": ("Attention", "注意力"),
    "nav.positions": ("Positions", "位置"),
    "nav.architecture": ("Architecture", "结构"),
    "nav.cost": ("Parameters", "参数"),
    "nav.next": ("Next steps", "下一步"),
    # --- headline ---
    "lead.translate": (
        "A Transformer trained to translate <b>{direction}</b>. {shape}",
        "一个训练好的 <b>{direction}</b> 翻译 Transformer。{shape}",
    ),
    "lead.plain": (
        "A trained encoder–decoder Transformer. {shape}",
        "一个训练好的编码器–解码器 Transformer。{shape}",
    ),
    "lead.shape": (
        "It has {encoder} in the encoder and {decoder} in the decoder, vectors of {dim} numbers, "
        "{heads} and a vocabulary of {vocab} tokens.",
        "编码器 {encoder}，解码器 {decoder}，向量维度 {dim}，{heads}，词表大小 {vocab}。",
    ),
    "count.layer": ("1 layer", "1 层"),
    "count.layers": ("{n} layers", "{n} 层"),
    "count.head": ("1 attention head", "1 个注意力头"),
    "count.heads": ("{n} attention heads", "{n} 个注意力头"),
    "lead.pairs": (
        "Its training corpus has {pairs} sentence pairs.",
        "训练数据共 {pairs} 个句对。",
    ),
    "card.exact_match": ("Exact match", "完全匹配率"),
    "card.exact_match.of": (
        "of {n} test sentences equal the reference to the letter",
        "{n} 句测试集中，译文与参考译文一字不差的比例",
    ),
    "card.exact_match.plain": (
        "of the test sentences equal the reference to the letter",
        "测试集中，译文与参考译文一字不差的比例",
    ),
    "card.bleu": ("BLEU", "BLEU"),
    "card.chrf": ("chrF", "chrF"),
    "card.perplexity": ("Perplexity", "困惑度"),
    "card.perplexity.note": (
        "the model hesitates between about this many tokens; 1 is certainty",
        "平均相当于在这么多个词元之间犹豫；1 表示完全确定",
    ),
    "card.parameters": ("Parameters", "参数量"),
    "card.parameters.note": ("{n} numbers learned", "共 {n} 个可学习的数"),
    "card.seconds": ("Training time", "训练用时"),
    "card.seconds.steps": ("{steps} steps", "{steps} 步"),
    "card.seconds.on": ("{steps} steps on {device}", "{device}，{steps} 步"),
    "card.seconds.device": ("on {device}", "{device}"),
    "card.tokens": ("Speed", "训练速度"),
    "card.tokens.unit": ("tokens/s", "词元/秒"),
    "card.tokens.note": ("median over the run", "全程中位数"),
    "time.hours": ("{h} h {m} min", "{h} 小时 {m} 分"),
    "time.minutes": ("{m} min {s} s", "{m} 分 {s} 秒"),
    "time.seconds": ("{s} s", "{s} 秒"),
    # --- samples ---
    "samples.title": ("Sample translations", "译文示例"),
    "samples.intro": (
        "Sentences that the model did not see in training. Where the output differs from the "
        "reference, the differing parts are marked; another wording is not always a mistake.",
        "以下句子均未在训练中出现。译文与参考译文不一致时，不同之处会标出；说法不同不一定就是译错。",
    ),
    "samples.exact": (
        "{right} of the {shown} shown here equal the reference. They were picked to be different, "
        "mistakes included: how often the model is right is what the scores say.",
        "这里的 {shown} 句中，有 {right} 句与参考译文完全一致。"
        "示例是有意挑选的，也包括译错的句子；模型的正确率请看上面的分数。",
    ),
    "samples.source": ("Source", "原文"),
    "samples.output": ("Output", "译文"),
    "samples.reference": ("Reference", "参考"),
    "samples.same": ("same as the reference", "与参考译文一致"),
    "samples.differs": ("differs from the reference", "与参考译文不同"),
    "samples.unknown": ("no reference", "无参考译文"),
    "samples.more": ("{n} more", "再看 {n} 句"),
    "samples.none": ("No samples were given.", "没有提供示例。"),
    "samples.empty": ("(nothing)", "（空）"),
    # --- curves ---
    "curves.title": ("How it learned", "训练过程"),
    "curves.intro": (
        "The loss is the average surprise per token, −ln p(right token): 0 would be certainty, "
        "and {uniform} is what guessing among all {vocab} tokens costs.",
        "损失是每个词元的平均“意外程度”，即 −ln p(正确词元)：0 表示完全确定；"
        "在全部 {vocab} 个词元里瞎猜，损失约为 {uniform}。",
    ),
    "curves.dropout": (
        "Training is measured with dropout on, so its curve may well lie above that of validation.",
        "训练损失是在启用 dropout 时测得的，因此高于验证损失很常见。",
    ),
    "curves.smoothing": (
        "The training curve here may include label smoothing; then it cannot fall to 0.",
        "此处的训练损失可能包含标签平滑，若是如此便不会降到 0。",
    ),
    "curves.none": ("No history was kept for this run.", "这次训练没有保留日志。"),
    "curves.hover": (
        "Point at a curve, or focus it and use the arrow keys, to read its numbers.",
        "把光标移到曲线上，或选中图表后用方向键，即可读数。",
    ),
    "chart.loss": ("Loss", "损失"),
    "chart.loss.unit": ("nats per token", "奈特/词元"),
    "chart.log": ("{unit}, logarithmic", "{unit}，对数坐标"),
    "chart.lr": ("Learning rate", "学习率"),
    "chart.tokens": ("Speed", "训练速度"),
    "chart.tokens.unit": ("tokens per second", "词元/秒"),
    "chart.exact": ("Exact match in validation", "验证集完全匹配率"),
    "chart.percent": ("%", "%"),
    "chart.norm": ("Gradient norm", "梯度范数"),
    "chart.plain": ("", ""),
    "chart.step": ("step", "步"),
    "series.train": ("training, smoothed", "训练（已平滑）"),
    "series.raw": ("training, each reading", "训练（原始读数）"),
    "series.validation": ("validation", "验证"),
    "series.value": ("value", "数值"),
    # --- attention ---
    "attention.title": ("Where it looks", "注意力：它在看哪里"),
    "attention.intro": (
        "Each row is one token, and its colours say how that token's attention is spread over the "
        "columns; a row adds up to 1. In <b>cross-attention</b> a row is the token being written "
        "and the columns are the source: a good translator draws the alignment of the two "
        "sentences there, roughly a diagonal that bends wherever the word order differs.",
        "每一行是一个词元，颜色深浅表示它的注意力在各列上如何分配，每行之和为 1。"
        "在<b>交叉注意力</b>里，行是正在写出的译文词元，列是原文：翻译得好的模型会在这里画出两句话的"
        "对齐关系，大致是一条对角线，语序不同的地方就会拐弯。",
    ),
    "attention.heads": (
        "Heads divide the work, so compare them: some align words, some hold on to the last token "
        "(often a place to rest when there is nothing to fetch), some watch the neighbours. "
        "Weights show where a head reads, not by themselves why the model answers as it does.",
        "不同的头各有分工，可以对比着看：有的负责对齐词语，"
        "有的总盯着句末词元（没有信息要取时常停在那里），有的关注相邻位置。权重只说明这个头在读哪里，并不能单独解释模型为何给出这样的译文。",
    ),
    "attention.self": (
        "In <b>encoder self-attention</b> rows and columns are both the source, and every token "
        "sees every other. In <b>decoder self-attention</b> both are what the decoder has read "
        "so far; the upper right is empty because it must not see the future.",
        "在<b>编码器自注意力</b>里，行和列都是原文，词元之间两两可见。在<b>解码器自注意力</b>里，"
        "行和列都是解码器已读入的词元；右上角是空的，因为不允许看到未来。",
    ),
    "attention.none": (
        "No sample is short enough to be drawn here.",
        "没有长度合适、可以在此画出的示例。",
    ),
    "attention.sample": ("Sentence", "句子"),
    "attention.kind": ("Attention", "注意力类型"),
    "attention.layer": ("Layer", "层"),
    "attention.head": ("Head", "头"),
    "attention.static": (
        "Cross-attention of the last decoder layer, averaged over its heads.",
        "解码器最后一层的交叉注意力，对所有头取平均。",
    ),
    "attention.legend": ("weight", "权重"),
    "attention.peak": ("largest of its row", "该行最大值"),
    "kind.cross": ("Cross: output → source", "交叉：译文 → 原文"),
    "kind.encoder": ("Encoder: source → source", "编码器：原文 → 原文"),
    "kind.decoder": ("Decoder: output → output", "解码器：译文 → 译文"),
    "attention.space": (
        "The dot · in front of a token stands for a space.",
        "词元前的“·”表示空格。",
    ),
    "js.hint": (
        "Point at a cell, or focus the map and use the arrow keys, to read its weight.",
        "把光标移到格子上，或选中图后用方向键，即可读出权重。",
    ),
    "js.average": ("average", "平均"),
    "js.head": ("head {n}", "第 {n} 头"),
    "js.layer": ("layer {n}", "第 {n} 层"),
    "js.writing": (
        "Writing “{row}”: {value} on “{column}”",
        "写出“{row}”时，{value} 的注意力在“{column}”",
    ),
    "js.reading": (
        "Reading “{row}”: {value} on “{column}”",
        "读到“{row}”时，{value} 的注意力在“{column}”",
    ),
    "js.rows.cross": ("being written ↓", "正在写出 ↓"),
    "js.rows.self": ("reading ↓", "正在读 ↓"),
    "js.columns": ("looks at →", "看向 →"),
    "js.step": ("step {n}", "第 {n} 步"),
    "js.position": (
        "position {row}, dimension {column}: {value}",
        "位置 {row}，维度 {column}：{value}",
    ),
    "js.similar": ("positions {row} and {column}: {value}", "位置 {row} 与 {column}：{value}"),
    "js.scroll": ("There is more: scroll sideways →", "内容较宽，可左右滑动 →"),
    "js.copy": ("Copy", "复制"),
    "js.copied": ("Copied", "已复制"),
    "js.map": (
        "{kind}, layer {layer}, {head}. Use the arrow keys to read single weights.",
        "{kind}，第 {layer} 层，{head}。可用方向键逐格读数。",
    ),
    # --- positions ---
    "positions.title": ("How it knows the order", "位置编码：它如何知道词序"),
    "positions.intro": (
        "Attention by itself sees a bag of tokens. What tells it the order is a vector for each "
        "position, added to the token's embedding.",
        "注意力本身看到的只是一袋没有顺序的词元。词序来自位置向量：每个位置一个，加到词元的嵌入上。",
    ),
    "positions.formula": (
        "Here it is computed, not learned: sine and cosine of "
        "<var>pos</var> / {base}<sup>2<var>i</var>/{dim}</sup>. Low <var>i</var> turns fast, high "
        "<var>i</var> slowly: the wavelengths run from {fast} to {slow} positions, like the hands "
        "of many clocks, so each position has a pattern of its own and no longest length exists.",
        "这里的位置向量是算出来的，不是学出来的：取 "
        "<var>pos</var> / {base}<sup>2<var>i</var>/{dim}</sup> 的正弦与余弦。"
        "<var>i</var> 小的维度变化快，大的变化慢，波长从 {fast} 到 {slow} 个位置，"
        "好比许多转速不同的表针，因此每个位置的图案都独一无二，也没有最大长度的限制。",
    ),
    "positions.halves": (
        "This model puts all sines in the left half and all cosines in the right half; in each "
        "half the fast ones come first.",
        "本模型把正弦全部放在左半边，余弦全部放在右半边，每一半都从变化快的维度开始。",
    ),
    "positions.interleaved": (
        "As in the paper, even dimensions hold sines and odd ones cosines, from fast on the left "
        "to slow on the right.",
        "与论文一致：偶数维是正弦，奇数维是余弦，从左到右由快变慢。",
    ),
    "positions.learned": (
        "Here they are learned, one for each of {length} positions, so what they look like is what "
        "the training found; a longer sentence is refused.",
        "这里的位置向量是学出来的，共 {length} 个位置，图案完全由训练决定；更长的句子会被拒绝。",
    ),
    "positions.none": (
        "This model adds no position to its input.",
        "本模型没有给输入加位置向量。",
    ),
    "positions.map": ("Position × dimension", "位置 × 维度"),
    "positions.map.encoder": ("Position × dimension, encoder", "位置 × 维度（编码器）"),
    "positions.map.decoder": ("Position × dimension, decoder", "位置 × 维度（解码器）"),
    "positions.similar": ("Similarity of two positions", "两个位置的相似度"),
    "positions.similar.note": (
        "The cosine of the angle between two position vectors.",
        "两个位置向量夹角的余弦。",
    ),
    "positions.similar.sinusoidal": (
        "PE·PEᵀ, scaled to 1 on the diagonal. It depends on the distance alone, and near positions "
        "are the most alike. That is how attention can ask for “the word before”.",
        "即 PE·PEᵀ，对角线归一为 1。它只取决于两个位置的距离，越近越相似，"
        "注意力由此可以表达“前一个词”这样的关系。",
    ),
    "axis.position": ("position", "位置"),
    "axis.dimension": ("dimension", "维度"),
    # --- architecture ---
    "architecture.title": ("Architecture", "模型结构"),
    "architecture.intro": (
        "Read from the bottom up. Beside each arrow stands the shape of what flows there: "
        "<var>B</var> sentences in a batch, <var>S</var> source tokens, <var>T</var> target "
        "tokens.",
        "自下而上读。箭头旁标的是流经张量的形状：<var>B</var> 为批内句数，"
        "<var>S</var> 为输入词元数，<var>T</var> 为输出词元数。",
    ),
    "architecture.post": (
        "Each sub-layer is <b>post-norm</b>, as in the paper: norm(x + f(x)).",
        "每个子层采用<b>后归一化（post-norm）</b>，与论文一致：norm(x + f(x))。",
    ),
    "architecture.pre": (
        "Each sub-layer is <b>pre-norm</b>: x + f(norm(x)), which keeps a clean path for "
        "gradients.",
        "每个子层采用<b>前归一化（pre-norm）</b>：x + f(norm(x))，为梯度留出一条直通的路。",
    ),
    "architecture.mixed": (
        "Its layers are not all alike: the first one of each stack is drawn.",
        "各层并不完全相同，图中画出的是每个堆栈的第一层。",
    ),
    "architecture.label": (
        "Diagram of the encoder and decoder with the tensor shapes",
        "标有张量形状的编码器与解码器结构图",
    ),
    "diagram.encoder": ("Encoder", "编码器"),
    "diagram.decoder": ("Decoder", "解码器"),
    "diagram.layers": ("× {n} layers", "× {n} 层"),
    "diagram.layer": ("× 1 layer", "× 1 层"),
    "diagram.post": ("post-norm", "后归一化"),
    "diagram.pre": ("pre-norm", "前归一化"),
    "diagram.dropout": ("dropout {p}", "dropout {p}"),
    "diagram.source": ("source tokens", "输入词元"),
    "diagram.target": ("output so far", "已写出的词元"),
    "diagram.embedding": ("Token embedding", "词嵌入"),
    "diagram.shared": ("{size}, shared", "{size}，共用"),
    "diagram.sinusoidal": ("sinusoidal", "正弦位置"),
    "diagram.learned": ("learned", "可学习位置"),
    "diagram.positions": ("positions", "编码"),
    "diagram.own": ("positions", "位置编码"),
    "diagram.self": ("Self-attention", "自注意力"),
    "diagram.causal": ("Masked self-attention", "带掩码的自注意力"),
    "diagram.cross": ("Cross-attention", "交叉注意力"),
    "diagram.feed": ("Feed-forward", "前馈网络"),
    "diagram.gated": ("Gated feed-forward", "门控前馈网络"),
    "diagram.heads": ("{heads} heads of {size}", "{heads} 头，每头 {size} 维"),
    "diagram.groups": (
        "{heads} heads of {size}, {groups} for K and V",
        "{heads} 头，每头 {size} 维，K、V {groups} 头",
    ),
    "diagram.scores": ("scores {shape}", "得分 {shape}"),
    "diagram.layernorm": ("LayerNorm", "LayerNorm"),
    "diagram.rmsnorm": ("RMSNorm", "RMSNorm"),
    "diagram.add": ("Add", "相加"),
    "diagram.addnorm": ("Add, {norm}", "相加，{norm}"),
    "diagram.memory": ("memory", "编码结果"),
    "diagram.linear": ("Linear", "线性层"),
    "diagram.tied": ("the embedding table again", "即词嵌入表"),
    "diagram.softmax": ("Softmax", "Softmax"),
    "diagram.next": ("probability of each next token", "下一个词元的概率"),
    "diagram.hidden": ("hidden states", "隐状态"),
    # --- parameters and cost ---
    "cost.title": ("Parameters and cost", "参数量与计算量"),
    "cost.intro": (
        "Counted by formula from the configuration. {total} in all.",
        "按配置用公式计算，共 {total} 个参数。",
    ),
    "cost.check": (
        "The formulas add up to exactly what the model holds.",
        "公式之和与实际模型的参数量完全一致。",
    ),
    "cost.part": ("Part", "部件"),
    "cost.formula": ("Formula", "公式"),
    "cost.parameters": ("Parameters", "参数量"),
    "cost.share": ("Share", "占比"),
    "cost.total": ("Total", "合计"),
    "letter.d": ("width", "模型维度"),
    "letter.H": ("heads", "头数"),
    "letter.D": ("head size", "每头维度"),
    "letter.G": ("key/value heads", "键值头数"),
    "letter.f": ("feed-forward width", "前馈层宽度"),
    "letter.V": ("vocabulary", "词表大小"),
    "side.encoder": ("Encoder ", "编码器"),
    "side.decoder": ("Decoder ", "解码器"),
    "part.embedding": ("embedding", "词嵌入"),
    "part.positions": ("positions", "位置编码"),
    "part.self-attention": ("self-attention", "自注意力"),
    "part.cross-attention": ("cross-attention", "交叉注意力"),
    "part.feed-forward": ("feed-forward", "前馈网络"),
    "part.norms": ("norms", "归一化"),
    "part.source norm": ("source norm", "输入归一化"),
    "part.final norm": ("final norm", "末尾归一化"),
    "part.head": ("Output head", "输出层"),
    "formula.shared with the encoder": ("shared with the encoder", "与编码器共用"),
    "formula.computed, not learned": ("computed, not learned", "由公式计算，无参数"),
    "formula.stored, not learned": ("stored, not learned", "随权重保存，不学习"),
    "formula.the first state itself": ("the first state itself", "第一个状态本身"),
    "formula.a state as it is": ("a state as it is", "状态本身"),
    "formula.tied to the embedding": ("tied to the embedding", "与词嵌入共用"),
    "formula.tied to the embedding + V": ("tied to the embedding, + V", "与词嵌入共用，另加 V"),
    "growth.title": ("What the work is spent on as sentences grow", "句子变长，计算花在哪里"),
    "growth.intro": (
        "Forward operations for one source and one target token, in sentences of the same length. "
        "Comparing every token with every other grows with the length; the rest stays as it is.",
        "处理一个输入词元加一个输出词元的前向计算量，假定两者等长。"
        "词元两两比较的开销随长度增长，其余部分不变。",
    ),
    "growth.cross": (
        "From about {n} tokens on, that costs more than the feed-forward layers.",
        "长度超过约 {n} 个词元时，这部分开销就超过了前馈网络。",
    ),
    "growth.length": ("Length", "长度"),
    "growth.split": ("Split", "构成"),
    "growth.flops": ("MFLOPs", "MFLOPs"),
    "growth.quadratic": ("attention, token × token", "注意力（词元两两比较）"),
    "growth.projections": ("attention, projections", "注意力（线性投影）"),
    "growth.feed": ("feed-forward", "前馈网络"),
    "growth.head": ("output head", "输出层"),
    # --- next steps ---
    "next.title": ("Where to go from here", "接下来做什么"),
    "next.translate": ("Translate with this model", "用这个模型翻译"),
    "next.train": ("Train on your own sentence pairs", "用自己的句对训练"),
    "next.resume": ("Go on training where it stopped", "从中断处继续训练"),
    "next.evaluate": ("Measure it on a test set", "在测试集上评测"),
    "facts.title": ("How to reproduce this run", "如何复现这次训练"),
    "facts.config": ("The whole configuration", "完整配置"),
    "facts.direction": ("Direction", "翻译方向"),
    "facts.data": ("Data", "数据"),
    "facts.train_pairs": ("Training pairs", "训练句对"),
    "facts.validation_pairs": ("Validation pairs", "验证句对"),
    "facts.test_pairs": ("Test pairs", "测试句对"),
    "facts.steps": ("Steps", "训练步数"),
    "facts.seconds": ("Training time", "训练用时"),
    "facts.device": ("Device", "设备"),
    "facts.precision": ("Precision", "精度"),
    "facts.seed": ("Seed", "随机种子"),
    "facts.command": ("Command", "命令"),
    "facts.torch": ("PyTorch", "PyTorch"),
    "facts.allformer": ("Allformer", "Allformer"),
}


def word(key: str, /, **values: object) -> Pair:
    """A text in both languages, with escaped `values` (or pairs from `word`) put in."""
    en, zh = WORDS[key]
    return en.format(**_values(values, 0)), zh.format(**_values(values, 1))


def counted(thing: str, n: int) -> Pair:
    """So many of a thing: `counted("layer", 1)` → "1 layer"."""
    return word(f"count.{thing}") if n == 1 else word(f"count.{thing}s", n=n)


def said(value: object) -> Pair:
    """What a caller says: one text for both languages, or `{"en": …, "zh": …}`."""
    if isinstance(value, dict):
        en = value.get("en", value.get("zh", ""))
        return escape(str(en)), escape(str(value.get("zh", en)))
    return escape(str(value)), escape(str(value))


def machine(name: str) -> dict[str, str]:
    """A processor with its threads in both languages: `machine("AMD EPYC, 2 threads")`."""
    return {"en": name, "zh": re.sub(r"(\d+) threads?\b", r"\1 个线程", name)}


def joined(*pairs: Pair, by: str = "") -> Pair:
    """Several texts in a row."""
    return by.join(pair[0] for pair in pairs), by.join(pair[1] for pair in pairs)


def sentences(*pairs: Pair) -> Pair:
    """Several sentences in a row; Chinese has no space between them."""
    return " ".join(pair[0] for pair in pairs), "".join(pair[1] for pair in pairs)


def spans(pair: Pair, tag: str = "span") -> str:
    """HTML that shows the one of the two texts that the page's language asks for."""
    en, zh = pair
    if en == zh:
        return en
    return f'<{tag} class="en" lang="en">{en}</{tag}><{tag} class="zh" lang="zh-Hans">{zh}</{tag}>'


def label(pair: Pair) -> str:
    """An `aria-label` that the language switch keeps up to date."""
    return f'aria-label="{pair[0]}" data-en="{pair[0]}" data-zh="{pair[1]}"'


def script_words() -> dict[str, Pair]:
    """The texts that the page's script needs while it runs."""
    return {key[3:]: pair for key, pair in WORDS.items() if key.startswith("js.")}


def _values(values: dict[str, object], language: int) -> dict[str, object]:
    return {
        key: value[language] if isinstance(value, tuple) else escape(str(value))
        for key, value in values.items()
    }
