"""The words of the report of a model that hears; see `words`."""

from __future__ import annotations

from allformer.explain.run_words import Pair

SOUND_WORDS: dict[str, Pair] = {
    # --- what was taught ---
    "title.transcription": (
        "A Transformer learned to write down what it hears",
        "一个 Transformer 学会了听写",
    ),
    "title.sound-codec": (
        "A codec learned to write sound as tokens",
        "一个编解码器学会了把声音写成词元",
    ),
    "title.sound-tokens": (
        "A Transformer learned to go on speaking",
        "一个 Transformer 学会了接着说下去",
    ),
    "title.sound-tokens.semantic": (
        "A Transformer learned what may be said next",
        "一个 Transformer 学会了接下来说什么",
    ),
    "title.sound-tokens.coarse": (
        "A Transformer learned how what is said may sound",
        "一个 Transformer 学会了这些话该怎么发声",
    ),
    "title.sound-tokens.fine": (
        "A Transformer learned the finer detail of a sound",
        "一个 Transformer 学会了补全声音的细节",
    ),
    "lead.hears": (
        "{seconds} seconds of sound become {frames} spectra of {bins} bands; two convolutions make "
        "{positions} vectors of them, which the encoder reads, and the decoder writes the words. "
        "{shape}",
        "{seconds} 秒声音变成 {frames} 个 {bins} 频带的频谱，两层卷积把它们变成 {positions} 个"
        "向量，由编码器读入，再由解码器写出文字。{shape}",
    ),
    "lead.sound-codec": (
        "A codec writes sound as tokens and makes sound of them again: {frames} frames a second, "
        "each as up to {books} codes out of {codes}, {kbit} kbit/s where the recordings take "
        "{plain}. What goes on speaking says such tokens.",
        "编解码器把声音写成词元，再由词元还原成声音：每秒 {frames} 帧，每帧最多 {books} 个码字，"
        "各取自 {codes} 个，共 {kbit} kbit/s，而原录音需要 {plain} kbit/s。"
        "接着说话的模型说出的正是这些词元。",
    ),
    # --- a codec, by bit rate ---
    "rate.title": ("What is left at each bit rate", "不同码率下还剩下什么"),
    "rate.kbit": ("kbit/s", "码率（kbit/s）"),
    "rate.si_sdr": ("SI-SDR, dB ↑", "SI-SDR（dB）↑"),
    "rate.spectral": ("Spectral distance, dB ↓", "频谱距离（dB）↓"),
    "rate.si_sdr.at": ("SI-SDR at {kbit} kbit/s, dB", "SI-SDR（{kbit} kbit/s，dB）"),
    "rate.spectral.at": (
        "Spectral distance at {kbit} kbit/s, dB",
        "频谱距离（{kbit} kbit/s，dB）",
    ),
    "rate.note": (
        "Means over held-out recordings. SI-SDR is how far the wave stands above what is wrong in "
        "it: more is better. The spectral distance is between log spectra: less is better.",
        "均为留出录音上的平均值。SI-SDR 衡量波形比误差强多少，越大越好；"
        "频谱距离是对数频谱之间的距离，越小越好。",
    ),
    # --- sounds ---
    "sounds.transcripts": (
        "Held-out recordings that the model did not learn from, with what it wrote. Time runs to "
        "the right, pitch upwards; what is louder is lighter. Press play, or click where you want "
        "to begin.",
        "以下录音均未用于训练，上方是模型写出的文字。横轴为时间，纵轴为音高，越响越亮。"
        "可按播放键，或点击图上任意处从那里听起。",
    ),
    "sounds.versions": (
        "Held-out recordings as they were, and as the codec gives them back at so many bits a "
        "second.",
        "以下录音均未用于训练：先是原声，再是编解码器在不同码率下还原的声音。",
    ),
    "sounds.continued": (
        "The model was given the beginning of a held-out recording, up to the white line; what "
        "follows is its own. Nothing was picked by hand.",
        "白线之前是给模型的开头，取自未用于训练的录音；白线之后是它自己接着说的。结果未经人工挑选。",
    ),
    "sounds.judged": (
        "A recogniser hears what was to be expected in {right} of these {shown}.",
        "由识别器来听，这 {shown} 段中有 {right} 段正如所料。",
    ),
    "sounds.more": ("{n} more sounds", "再听 {n} 段"),
    "sounds.wanted": ("is:", "应为："),
    "sounds.original": ("original", "原声"),
    "sounds.given": ("given", "给出"),
    "sounds.made": ("made", "续说"),
    "sounds.score": ("SI-SDR {score} dB", "SI-SDR {score} dB"),
    "sounds.spectrogram": ("spectrogram", "频谱图"),
    # --- attention over sound ---
    "listens.intro": (
        "For each token that it writes, the decoder looks at the sound. A row is a token, and "
        "time runs to the right as in the spectrogram above it; the stronger the colour, the "
        "more of its attention is there. A recogniser that hears word after word draws a "
        "staircase.",
        "解码器每写一个词元，都会去看声音。每一行是一个词元，时间与上方频谱图一致，颜色越深表示注意力越多。"
        "逐词听写的模型会画出一道阶梯。",
    ),
    "listens.note": (
        "Mean of all heads of the layer whose weights are the sharpest: layer {layer} of {layers}.",
        "所有头的平均，取权重最集中的一层：第 {layer} 层（共 {layers} 层）。",
    ),
    "listens.map": ("attention over time", "注意力随时间的分布"),
    "listens.none": (
        "There is no recording here to listen to, or no layer that weighs sound.",
        "没有可供观察的录音，或没有给声音分配权重的层。",
    ),
    # --- architecture and cost ---
    "diagram.sound": ("log-mel spectra", "对数梅尔频谱"),
    "diagram.convolutions": ("Two convolutions", "两层卷积"),
    "diagram.convolutions.size": (
        "{mels} bands → {dim}, every other",
        "{mels} 频带 → {dim}，隔一取一",
    ),
    "architecture.intro.hears": (
        "Read from the bottom up. Beside each arrow stands the shape of what flows there: "
        "<var>B</var> recordings in a batch, <var>S</var> states of sound, <var>T</var> tokens "
        "that are written.",
        "自下而上读。箭头旁标的是流经张量的形状：<var>B</var> 为批内录音数，"
        "<var>S</var> 为声音向量数，<var>T</var> 为写出的词元数。",
    ),
    "growth.title.hears": (
        "What the work is spent on as recordings grow",
        "录音变长，计算花在哪里",
    ),
    "growth.intro.hears": (
        "Forward operations for one state of sound and one token that is written, with as many of "
        "either. Comparing every one with every other grows with the length; the rest stays as it "
        "is.",
        "处理一个声音向量加一个写出的词元的前向计算量，假定两者一样多。"
        "两两比较的开销随长度增长，其余部分不变。",
    ),
    "part.convolution 1": ("convolution 1", "卷积 1"),
    "part.convolution 2": ("convolution 2", "卷积 2"),
    "positions.stored": (
        "Here the encoder’s are computed, sines in one half and cosines in the other, and stored "
        "with the weights, for {length} states; the decoder’s are learned.",
        "这里编码器的位置向量是算出来的，一半正弦、一半余弦，随权重保存，共 {length} 个；"
        "解码器的是学出来的。",
    ),
    # --- figures and next steps ---
    "card.crops.unit": ("crops/s", "段/秒"),
    "chart.crops.unit": ("crops per second", "段/秒"),
    "facts.crops": ("Crops of a step", "每步片段数"),
    "facts.recordings": ("Recordings of a step", "每步录音数"),
    "card.sounds.unit": ("recordings/s", "段/秒"),
    "chart.sounds.unit": ("recordings per second", "段/秒"),
    "figure.wer": ("Word error rate", "词错误率"),
    "figure.cer": ("Character error rate", "字符错误率"),
    "figure.si_sdr": ("SI-SDR, dB", "SI-SDR（dB）"),
    "figure.kbit_per_second": ("kbit/s", "码率（kbit/s）"),
    "figure.wer_original": ("Word error rate, originals", "词错误率（原录音）"),
    "figure.wer_decoded": ("Word error rate, read back", "词错误率（还原后）"),
    "figure.says_digits": ("Go on with digits", "接着说了数字"),
    "figure.next_digit": ("The next digit is right", "下一个数字正确"),
    "figure.same_voice": ("In the same voice", "嗓音不变"),
    "figure.spectral_distance": ("Spectral distance", "频谱距离"),
    "next.transcribe": ("Write down a recording", "听写一段录音"),
    "next.continue": ("Go on with a recording", "接着一段录音说下去"),
}
